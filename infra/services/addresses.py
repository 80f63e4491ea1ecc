"""Where the services of a cluster are: what `rlvf up` writes into its home, and announces to the scheduler."""

import fcntl
import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from infra import disk
from infra.home import private_home
from infra.services.supervisor import boot_name
from infra.storage.typed import DamagedError, read_typed

UP = "up.json"
ENDPOINT = "AWS_ENDPOINT_URL_S3"


@dataclass(frozen=True)
class Addresses:
    """No secret stands in any of them."""

    prefect: str | None = None  # of the API
    mlflow: str | None = None
    scheduler: str | None = None
    dashboard: str | None = None  # Dask's page
    storage: str | None = None  # a URI; runs lie under runs/
    storage_endpoint: str | None = None  # of an S3 service that is not Amazon's
    storage_mark: str | None = None  # that lies there: see `infra.storage.mark`

    def or_else(self, other: "Addresses") -> "Addresses":
        """These, and of `other` what is lacking here; another storage's endpoint and mark are not."""
        if self.storage is not None and self.storage.rstrip("/") != (other.storage or "").rstrip("/"):
            other = replace(other, storage_endpoint=None, storage_mark=None)
        return Addresses(**{name: value or getattr(other, name) for name, value in asdict(self).items()})


def addresses(found: Mapping[str, Any]) -> Addresses:
    """The addresses in a mapping, which may hold other keys and lack some."""
    known = {each.name: found.get(each.name) for each in fields(Addresses)}
    return Addresses(**{name: str(value) for name, value in known.items() if value})


def adopt_endpoint(announced: Addresses, bundled: Mapping[str, str]) -> None:
    """Set $AWS_ENDPOINT_URL_S3 to that of the announced storage, unless it is set by someone else than the bundle; the
    bundle's (`bundled`, its environment) stays for the storage that the bundle names."""
    given = os.environ.get(ENDPOINT)
    moved = announced.storage != bundled.get("RLVF_STORAGE") and given == bundled.get(ENDPOINT)
    if announced.storage_endpoint and (given is None or moved):
        os.environ[ENDPOINT] = announced.storage_endpoint


@dataclass(frozen=True)
class Up:
    """An `rlvf up` of this home, alive or killed."""

    pid: int
    ready: bool  # everything has answered once
    addresses: Addresses
    machine: str = field(default_factory=boot_name)  # where `pid` means something: a home may be on a share


class _Written(BaseModel):
    """`up.json` but for the addresses, which are beside these."""

    model_config = ConfigDict(extra="allow")

    pid: Annotated[int, Field(ge=1, le=2**31 - 1)]
    ready: bool = False
    machine: str = ""


def write_up(home: Path, up: Up) -> None:
    """Write `<home>/up.json`."""
    content = {"pid": up.pid, "machine": up.machine, "ready": up.ready, **asdict(up.addresses)}
    disk.write_file(home / UP, (json.dumps(content, indent=2) + "\n").encode())


def read_up(home: Path) -> Up | None:
    """The content of `<home>/up.json`; None where it is absent or damaged."""
    try:
        found = read_typed(home / UP, _Written, "")
    except (OSError, DamagedError):  # its lock tells whether one lives
        return None
    return None if found is None else Up(found.pid, found.ready, addresses(found.model_dump()), found.machine)


def running(home: Path) -> Addresses:
    """The addresses of this home's `rlvf up`, none without one."""
    up = read_up(home)
    return Addresses() if up is None else up.addresses


def is_up(home: Path) -> bool:
    """Whether an `rlvf up` of this home lives."""
    return disk.is_locked(home / "services" / "up.lock")


@contextmanager
def a_worker(home: Path) -> Iterator[None]:
    """Let `has_worker` find this process until the end of the context."""
    private_home(home)
    folder = home / "services"
    folder.mkdir(exist_ok=True)
    with (folder / "worker.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def has_worker(home: Path) -> bool:
    """Whether an `rlvf worker` of this home lives."""
    return disk.is_locked(home / "services" / "worker.lock")


@contextmanager
def the_only_up(home: Path) -> Iterator[bool]:
    """Let `is_up` find this process until the end of the context; yields False, and does nothing, if another is up."""
    private_home(home)
    folder = home / "services"
    folder.mkdir(exist_ok=True)
    with (folder / "up.lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        write_up(home, Up(os.getpid(), False, Addresses()))
        try:
            yield True
        finally:
            (home / UP).unlink(missing_ok=True)
