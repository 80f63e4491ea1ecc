"""Which MLflow run is a run's: `tracking.json` under its URI."""

import hashlib
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field, TypeAdapter

from infra.home import in_home
from infra.runs.mlflow_run import Owner
from infra.storage import place
from infra.storage.typed import read_typed

TRACKING = "tracking.json"
MlflowId = Annotated[str, Field(pattern=r"^[a-zA-Z0-9][a-zA-Z0-9_-]{0,255}$")]  # its own rule


@dataclass(frozen=True)
class Tracked:
    """What the file says."""

    run_id: MlflowId | None
    run: str | None = None  # the URI of the run that it belongs to; None in a file of an older version
    told: bool = False  # whether MLflow has all of the run's last session


def mlflow_run(uri: str) -> str | None:
    """The id of the run's MLflow run, if it has one. The copy of a run has none as long as the original is there with
    it: what the two do from now on is not the same. A run that was moved keeps it, if it is `mlflow_owner`'s.

    Raises DamagedError.
    """
    found = _read(uri)
    if found is None or found.run_id is None:
        return None
    if found.run is not None and not _same_place(found.run, uri):
        original = _read(found.run) if _within_reach(found.run, uri) else found
        if original is not None and original.run_id == found.run_id:
            return None
    return found.run_id


def save_mlflow_run(uri: str, run_id: str | None, *, told: bool = False) -> None:
    """Write the file."""
    place.write_text(place.join(uri, TRACKING), TypeAdapter(Tracked).dump_json(Tracked(run_id, uri, told)).decode())


def is_told(uri: str) -> bool:
    """Whether MLflow has all of the run. Raises DamagedError."""
    return (found := _read(uri)) is not None and found.told


def mlflow_owner(uri: str) -> Owner:
    """Which MLflow runs are taken for the run's: those that say so, by where it lies. Of one in this home, where nobody
    else writes, also those of an older version, which say nothing, and of where its file says that it lay before."""
    path = place.local_path(uri)
    if path is None or not in_home(path):
        return Owner(_tag(uri))
    found = _read(uri)
    before = {None} if found is None or found.run is None else {None, _tag(found.run)}
    return Owner(_tag(uri), frozenset(before))


def _tag(uri: str) -> str:
    """Where a run lies, however it is written, and without what the URI may hold of secrets."""
    path = place.local_path(uri)
    return hashlib.sha256((uri.rstrip("/") if path is None else str(path.resolve())).encode()).hexdigest()[:32]


def _read(uri: str) -> Tracked | None:
    return read_typed(
        place.join(uri, TRACKING), Tracked, "remove it, and the run goes on in a new MLflow run, with all its points"
    )


def _same_place(one: str, other: str) -> bool:
    here, there = place.local_path(one), place.local_path(other)
    if here is None or there is None:
        return one.rstrip("/") == other.rstrip("/")
    return here.exists() and here.samefile(there)  # a home has as many paths as links lead to it


def _within_reach(original: str, uri: str) -> bool:
    """Whether the original may be looked at: in a folder, or where the run itself lies. Anywhere else it is taken to be
    there still: who wrote the file may have named any address."""
    return place.local_path(original) is not None or _root(original) == _root(uri)


def _root(uri: str) -> str:
    protocol, _, rest = uri.partition("://")
    return f"{protocol}://{rest.partition('/')[0]}"
