"""The verifiers that this process holds open, from their first call on, with their processes and connections."""

import os
import stat
import threading
from collections.abc import Sequence
from pathlib import Path

from rl.records import Problem, Verdict
from rl.sources import path_of
from rl.verifiers.contract import Verifier
from rl.verifiers.isolation import sandbox
from rl.verifiers.isolation.pool import Pool
from rl.verifiers.isolation.process import Cell
from rl.verifiers.isolation.secret_places import secret_places
from rl.verifiers.spec import VerifierSpec, split_name
from rl.verifiers.verdicts import failed

KEPT = 4  # of one name: a user who edits a file makes a new verifier each time
KEPT_ALL = 32  # with their processes, of all names


class Here:
    """A verifier whose cost is bounded, so that it runs in this process."""

    about = ""

    def __init__(self, spec: VerifierSpec) -> None:
        assert spec.declared.verify is not None
        self._verify = spec.declared.verify

    def judge(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[Verdict]:
        return [self._one(problem, text) for problem, text in zip(problems, completions, strict=True)]

    def warm(self) -> None:
        pass

    def close(self) -> None:
        pass

    def _one(self, problem: Problem, completion: str) -> Verdict:
        try:
            return self._verify(problem, completion)
        except ValueError as error:  # a broken problem
            return failed("broken_problem", f"{problem.source}: {error}")


class Isolated(Pool):
    """A function that may not end, the user's or a built-in one, in processes that can be killed."""

    def __init__(self, spec: VerifierSpec, home: Path | None) -> None:
        spec.require_package()
        module = spec.declared.module
        ours = path_of(module) if module else None
        text, file = (ours.read_text("utf-8"), ours.name) if ours is not None else (spec.text, spec.file)
        folder = [] if spec.declared.built_in else folder_of(split_name(spec.name)[0])
        cell = Cell(
            sandbox=sandbox.chosen(spec.sandbox),
            network=spec.network,
            env=spec.env,
            hidden=secret_places(home),
            reads=[*folder, *(str(Path(path).expanduser().absolute()) for path in spec.reads)],
            log=home / "logs" / f"verifier-{Path(file).stem}.log" if home is not None and ours is None else None,
        )
        function = "reward" if ours is not None else spec.function
        super().__init__(text, file, function, spec.seconds, spec.memory_mb, cell=cell)


def folder_of(path: str) -> list[str]:
    """The folder of the user's file where this machine has it; not one that root's verifiers, who are another user,
    could not enter."""
    file = Path(path).absolute()
    try:
        entered = os.geteuid() or all(one.stat().st_mode & stat.S_IXOTH for one in file.resolve().parents)
        return [str(file.parent)] if entered and file.is_file() else []
    except OSError:  # this user may not look there: the source came with the call
        return []


_kept: dict[VerifierSpec, Verifier] = {}
_lock = threading.Lock()


def opened(spec: VerifierSpec, home: Path | None = None) -> Verifier:
    """The verifier of this process; ``home`` is rlvf's on this machine, with its certificates and logs.

    Raises VerifierError where it cannot be opened here.
    """
    with _lock:
        verifier = _kept.pop(spec, None) or _open(spec, home)
        _kept[spec] = verifier  # the last one used is the last one to go
        versions = [each for each in _kept if each.name == spec.name]
        for old in {*versions[:-KEPT], *list(_kept)[:-KEPT_ALL]}:
            _kept.pop(old).close()
        return verifier


def _open(spec: VerifierSpec, home: Path | None) -> Verifier:
    if spec.runs_here:
        return Here(spec)
    if spec.is_service:
        from rl.verifiers.service import Service

        return Service(spec.name, spec.seconds, home / "certs" if home is not None else None)
    return Isolated(spec, home)
