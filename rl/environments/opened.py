"""The environments that this process holds open, from their first call on, with the processes of their episodes."""

import atexit
import threading
from pathlib import Path

from rl.environments.in_process import InProcess, plays_in_process
from rl.environments.sessions import Sessions
from rl.environments.spec import EnvironmentSpec, split_name
from rl.verifiers.isolation import sandbox
from rl.verifiers.isolation.process import Cell
from rl.verifiers.isolation.secret_places import secret_places
from rl.verifiers.opened import folder_of

KEPT = 4  # a user who edits a file makes a new one each time

Played = Sessions | InProcess

_kept: dict[EnvironmentSpec, Played] = {}
_lock = threading.Lock()


def opened(spec: EnvironmentSpec, home: Path | None = None) -> Played:
    """The episodes of an environment in this process; ``home`` is rlvf's on this machine, with its secrets and logs.

    Raises EnvironmentSpecError, and SandboxError where the sandbox cannot be had here.
    """
    with _lock:
        sessions = _kept.pop(spec, None) or (
            InProcess(spec) if plays_in_process(spec) else Sessions(spec, _cell(spec, home))
        )
        _kept[spec] = sessions  # the last one used is the last one to go
        for old in list(_kept)[:-KEPT]:
            _kept.pop(old).end()
        return sessions


def close(spec: EnvironmentSpec) -> None:
    """End its processes, if this process holds it open."""
    with _lock:
        sessions = _kept.pop(spec, None)
    if sessions is not None:
        sessions.end()


def _cell(spec: EnvironmentSpec, home: Path | None) -> Cell:
    folder = [] if spec.built_in else folder_of(split_name(spec.name)[0])
    return Cell(
        sandbox=sandbox.chosen(spec.sandbox, "environment"),
        network=spec.network,
        env=spec.env,
        hidden=secret_places(home),
        reads=[*folder, *(str(Path(path).expanduser().absolute()) for path in spec.reads)],
        log=home / "logs" / f"environment-{Path(spec.file).stem}.log" if home is not None else None,
        section="environment",
    )


@atexit.register
def _end_all() -> None:
    for sessions in _kept.values():
        sessions.end()
