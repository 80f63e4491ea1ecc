"""A run on storage: what it is called, how one begins, how one goes on."""

import hashlib
import os
import shlex
from dataclasses import dataclass
from datetime import datetime
from difflib import get_close_matches
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel

from flows.config import TrainConfig
from flows.finetune_config import FinetuneConfig
from flows.options.reading import differences
from flows.start.lineage import PROBLEMS, saved_problems
from flows.start.saved import MOST_BYTES, last_session, write_config
from flows.start.tracked import TRACKING
from flows.start.whole_paths import with_whole_paths
from infra import disk
from infra.runs.checkpoints import (
    CONFIG,
    CRITIC,
    EXAMPLES,
    MODEL,
    SETTINGS,
    NotARun,
    is_run,
    require_run,
    resolve_run,
    state_uri,
)
from infra.runs.remains import has_versions
from infra.runs.tracking import TrackingConfig
from infra.security.secrets import hidden, revealed
from infra.storage import place, store
from infra.storage.usable import PROBE
from infra.weights.version import PolicyVersion, newest_version, published
from rl.problems.tables import ProblemError
from tasks.sets.named_set import set_names
from tasks.sets.problem_set import ProblemSet

M = TypeVar("M", bound=BaseModel)

FLOW_RUN = "flow_run.txt"  # the id of Prefect's flow run that began the run
SOURCES = "sources.json"  # digests of its verifiers and of further columns
UNNAMED = "\0unnamed"  # a model that nobody can name, no folder either
NEWEST = "newest"  # instead of a run's name: the one that was begun or resumed last


@dataclass(frozen=True)
class Run:
    """A run and its configuration."""

    uri: str
    config: TrainConfig
    resumed: bool
    saved: TrainConfig | None = None  # of a resumed run: the configuration that `config` was made from
    model_named: bool = False  # the command that resumes it names its model, too
    flow_run: str | None = None  # the id of Prefect's flow run that begins it

    @property
    def name(self) -> str:
        return self.uri.rstrip("/").rpartition("/")[2]

    @property
    def patience(self) -> float:
        return self.config.sync.patience

    @property
    def steps(self) -> int:
        return self.config.steps

    @property
    def tracking(self) -> TrackingConfig:
        return self.config.tracking

    @property
    def begun(self) -> bool:
        return is_run(self.uri)

    @property
    def under_way(self) -> bool:
        """Whether a version that it has made is saved."""
        return any(store.versions(state_uri(self.uri)))

    def save_config(self) -> None:
        """Write the configuration as it is now, without secrets; a run exists from that moment on."""
        if not self.resumed and self.flow_run is not None:
            place.write_text(place.join(self.uri, FLOW_RUN), self.flow_run)
        write_config(self.uri, without_secrets(self.config))

    def changes(self) -> list[str]:
        """What the configuration says otherwise than that of the last session, a line each."""
        assert self.saved is not None
        last = last_session(self.uri)
        lines = differences(self.saved if last is None else with_whole_paths(last), without_secrets(self.config))
        return [line for line in lines if not line.startswith("run: ")]  # it may be named by its folder or its URI

    def refuse_other_problems(self, problems: ProblemSet) -> None:
        """Raise ProblemError if these are not the problems that the run has been trained on. A run of an older version
        of the program has no record of them."""
        kept = saved_problems(self.uri)
        if kept is None:
            return
        paths = dict(zip(set_names(self.config.sets), (each.path for each in self.config.sets), strict=True))
        for name, now in problems.files.items():
            if not now.same_files(was := kept.get(name)):
                counts = f"{was.rows if was else 0} then, {now.rows} now"
                raise ProblemError(
                    f"{self.name} cannot be resumed: the problems of {paths[name]} are not those that it was trained "
                    f"on ({counts}); restore the file, or start a new run"
                )

    def refuse_other_models(self, critic: bool) -> None:
        """Raise ValueError if the run has been trained without the ``critic`` that its algorithm has now, or with one
        that it has no more: the two would be of different steps."""
        if not self.under_way or has_versions(place.join(self.uri, CRITIC)) == critic:
            return
        now, was = ("has a critic", "without one") if critic else ("has no critic", "with one")
        restore = f"its folder {CRITIC}, if it had one" if critic else "the algorithm as it was"
        raise ValueError(
            f"{self.name} cannot be resumed: {self.config.algorithm.name} {now}, and the run was trained {was}; "
            f"restore {restore}, or start a new run from {self.uri}/model"
        )


def local_folder(uri: str, home: Path) -> Path:
    """Where this machine keeps the log and pictures of the run at ``uri``: in the run itself where that is local. The
    folder of a run that lies elsewhere, or may only be read, has a digest of its URI in its name: many runs share a
    name."""
    path = place.local_path(uri)
    if path is not None and (os.access(path, os.W_OK) or not path.exists()):
        return path
    whole = uri.rstrip("/")
    digest = hashlib.sha256(whole.encode()).hexdigest()[:16]
    return home / "runs" / f"{whole.rpartition('/')[2]}-{digest}"


def without_secrets(config: M) -> M:
    """The configuration as others may see it; this process can make it whole again."""
    return type(config).model_validate(hidden(config.model_dump(mode="json", exclude_unset=True)))


def with_secrets(config: M, path: str = "") -> M:
    """The configuration made whole, by what this process has hidden or what its environment holds.

    Raises:
        MaskedError: a secret that neither knows; the setting is named.
    """
    return type(config).model_validate(revealed(config.model_dump(mode="json", exclude_unset=True), path))


def new_name(config: TrainConfig | FinetuneConfig) -> str:
    """The name of a run that was given none."""
    model = config.policy.model.rstrip("/").rpartition("/")[2]
    return f"{datetime.now():%Y%m%d-%H%M%S}-{model}"


def begun_by(uri: str, flow_run: str | None) -> bool:
    """Whether there is a run at ``uri`` that this flow run of Prefect's has begun."""
    return is_run(uri) and flow_run is not None and place.read(place.join(uri, FLOW_RUN)) == flow_run.encode()


def new_run(config: TrainConfig, home_runs: str, resume: str = "--resume ") -> Run:
    """The run that ``config`` describes; nothing is written yet. Raises ValueError as `new_place` does."""
    config = with_whole_paths(config)
    return Run(new_place(config.run, new_name(config), home_runs, resume), config, resumed=False)


def new_place(name: str | None, stem: str, home_runs: str, resume: str = "--resume ") -> str:
    """The URI of a new run, whether it learns from rewards or from examples, by its ``name``, else by its ``stem`` and
    perhaps a number. ``resume`` is how whoever reads a message asks for another run to go on.

    Raises:
        ValueError: a run of that name exists, or what is left of one, which would be gone on with, or other files,
            which would be overwritten.
    """
    if name is None:
        uri, count = place.join(home_runs, stem), 1
        while place.exists(uri) or not disk.claim(uri):  # two may begin in the same second, and are written much later
            count += 1
            uri = place.join(home_runs, f"{stem}-{count}")
        return uri
    if name == NEWEST:
        raise ValueError(f"run {NEWEST!r} means the newest one; give it another name")
    uri = resolve_run(name, home_runs)
    if is_run(uri) or place.exists(place.join(uri, SETTINGS)):
        raise ValueError(f"run {name!r} exists; go on with it by {resume}{shlex.quote(name)}, or name another")
    if has_versions(uri):
        raise ValueError(
            f"run {name!r}: {uri} holds checkpoints or weights and no {CONFIG}, as when a run was removed in part: "
            "restore that, remove the folder, or name another"
        )
    if others := _not_ours(uri):
        named = f"{', '.join(others[:3])}{' and more' if len(others) > 3 else ''}"
        raise ValueError(f"run {name!r}: {uri} holds {named}, which is no run's; name a folder of its own")
    return uri


def _not_ours(uri: str) -> list[str]:
    """What a folder holds but for hidden files, what every volume has, and what a start leaves that was killed before
    its run was one."""
    there = {name for name in place.children(uri) if not name.startswith((".", PROBE))}
    started = {"lock", PROBLEMS, SOURCES, FLOW_RUN, TRACKING, EXAMPLES} if "lock" in there else set()
    return sorted(there - {"pins", "lost+found"} - started)


def meant(name: str, home_runs: str, *others: str) -> str:
    """The end of a message with the nearest names of other runs, and of `others`; empty where none is near."""
    given = name.rstrip("/").rpartition("/")[2]
    try:
        there = {*others, *(uri.rpartition("/")[2] for uri in place.folders(home_runs))} - {given}
    except (OSError, ValueError):  # the message is about something else
        return ""
    near = get_close_matches(given, there, n=3, cutoff=0.5)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def existing_run(name: str, home_runs: str) -> str:
    """The URI of a run by its name, whether or not it exists; for `newest`, of the newest run that has made a step.

    Raises:
        NotARun: no run has made a step.
    """
    if name != NEWEST:
        return resolve_run(name, home_runs)
    if not (found := _newest_first(home_runs)):
        raise NotARun(_none_at(home_runs))
    for uri in found:
        if any(step > 0 for step in published(uri)):
            return uri
    raise NotARun(f"no run at {home_runs} has made a step yet")


def _newest_first(home_runs: str) -> list[str]:
    written = {uri: place.modified(place.join(uri, CONFIG)) for uri in place.folders(home_runs)}
    found = {uri: when for uri, when in written.items() if when is not None}
    return sorted(found, key=found.__getitem__, reverse=True)


def _newest_names(home_runs: str) -> str:
    """The end of a message about a run that is none and like none."""
    try:
        there = [uri.rpartition("/")[2] for uri in _newest_first(home_runs)[:3]]
        return f"; the newest runs are {', '.join(there)}" if there else f"; {_none_at(home_runs)}"
    except (OSError, ValueError):  # as in `meant`
        return ""


def _none_at(home_runs: str) -> str:
    others = any(place.exists(place.join(uri, SETTINGS)) for uri in place.folders(home_runs))
    return f"none of the runs at {home_runs} is of rlvf train" if others else f"there is no run at {home_runs} yet"


def known_run(name: str, home_runs: str) -> str:
    """The URI of the run of that name, which exists.

    Raises:
        NotARun: there is none; the message has the names that are most like it, else those of the newest runs.
    """
    uri = existing_run(name, home_runs)
    try:
        require_run(uri)
    except NotARun as error:
        if place.exists(settings := place.join(uri, SETTINGS)):
            method = place.read_text(settings, MOST_BYTES).partition("\n")[0].removeprefix("method: ")
            raise NotARun(
                f"{name} is a run of rlvf {method}; its model is {place.join(uri, MODEL)}; go on with it by: "
                f"rlvf {method} --resume {shlex.quote(name)}"
            ) from error
        if "lock" in place.children(uri) and not has_versions(uri) and not _not_ours(uri):
            begin = f"begin it anew by: rlvf train --run {shlex.quote(name)}"
            raise NotARun(f"{error}, as when it was stopped before its first step; {begin}") from error
        raise NotARun(f"{error}{meant(name, home_runs) or _newest_names(home_runs)}") from error
    return uri


def newest_weights(uri: str) -> PolicyVersion:
    """The newest version of the run at ``uri``. Raises NotARun where it has none."""
    if (newest := newest_version(uri)) is None:
        raise NotARun(f"{uri} has published no weights yet: `rlvf train --resume` goes on with it")
    return newest
