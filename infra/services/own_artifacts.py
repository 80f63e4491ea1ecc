"""Where the home's MLflow server keeps artifacts, for processes that write into its database while it does not run."""

import json
import re
from pathlib import Path

from pydantic import BaseModel, ConfigDict

from infra import disk
from infra.storage import place
from infra.storage.mark import has_mark
from infra.storage.typed import DamagedError, read_typed

OWN = "mlflow-artifacts:/"  # what MLflow calls its server's own store
WITHIN = re.compile(re.escape(OWN) + r"(?!/)[^%?#\\\0]*")  # no host, nothing that means another path once decoded
FILE = "services/artifacts.json"


class _Kept(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    storage: str  # a URI; "." is the home, which may have been moved or copied since
    mark: str | None  # left there: see `infra.storage.mark`


def is_within(uri: str) -> bool:
    """Whether `uri` names a place in the server's own store."""
    return WITHIN.fullmatch(uri) is not None and ".." not in uri.split("/")


def artifact_store(storage: str) -> str:
    """The URI of the server's own store."""
    return place.join(storage, "mlartifacts")


def remember_store(home: Path, storage: str, mark: str | None) -> None:
    """Note that the server of this home's database keeps artifacts on `storage`."""
    kept = {"storage": "." if place.local_path(storage) == home else storage, "mark": mark}
    disk.write_file(home / FILE, (json.dumps(kept, indent=2) + "\n").encode())


def artifact_place(home: Path, uri: str) -> str:
    """The URI at which the server of this home keeps a run's artifact URI. Raises OSError, in one line, where that is
    not known or its storage is not here."""
    if not is_within(uri):
        raise OSError(f"artifact URI {uri[:200]!r}: names no place in this home's own store")
    try:
        kept = read_typed(home / FILE, _Kept, "the next `rlvf up` writes it anew")
    except DamagedError as error:
        raise OSError(str(error)) from error
    if kept is None:
        raise OSError("where the MLflow server of this home keeps files is not known here before its next `rlvf up`")
    storage = str(home) if kept.storage == "." else kept.storage
    if not (place.exists(storage) if kept.mark is None else has_mark(storage, kept.mark)):
        raise OSError(f"the MLflow server of this home keeps files on {storage}, which is not here: mount it")
    return place.join(artifact_store(storage), uri.removeprefix(OWN))
