"""Requests to a Dask scheduler that neither join it nor run anything on it, and what `rlvf up` announces to it."""

import asyncio
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from infra.cluster.exclusions import EXCLUDED
from infra.cluster.placement import DEVICES, METRIC, ROLES, worker_name
from infra.cluster.reach import SchedulerAddress, UnreachableError, reach
from infra.hosts import bracketed
from infra.security.tls import dask_security
from infra.services.addresses import Addresses, addresses

if TYPE_CHECKING:
    from distributed import Security

SERVICES = ["rlvf", "services"]  # where `rlvf up` puts the addresses of everything into the scheduler's metadata
CLOCK = "rlvf-clock"  # an event topic: the scheduler stamps what is logged
SECONDS = 10.0
T = TypeVar("T")


@dataclass(frozen=True)
class WorkerSeen:
    """A worker as the scheduler sees it."""

    name: str
    address: str
    device: str = "?"  # its name, or its tag where the worker has announced no name
    roles: tuple[str, ...] = ()
    resources: Mapping[str, float] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)  # empty where it has announced none
    tokens_per_second: float | None = None  # of its last leases
    last_seen: float = 0.0  # seconds ago
    excluded: str = ""  # the run that gives it no more leases, and why


@dataclass(frozen=True)
class Seen:
    """A scheduler, as it describes itself."""

    workers: tuple[WorkerSeen, ...] = ()  # by name
    services: Addresses = field(default_factory=Addresses)  # none without `rlvf up`
    versions: Mapping[str, str] = field(default_factory=dict)  # of the scheduler's Python and packages
    clock: float = 0.0  # seconds that its clock is ahead of ours


def ask(address: SchedulerAddress, home: Path) -> Seen:
    """Ask a scheduler that `reach` has found. Raises `OSError`, and `SecurityError` without certificates."""
    return _answered(address, home, _seen)


def announce(address: SchedulerAddress, home: Path, services: Addresses) -> None:
    """Put the addresses of the services into the scheduler's metadata, for `ask`. Raises `OSError`."""
    try:
        reach(address, home)  # Dask itself would try again and again
    except UnreachableError as error:
        raise OSError(error.why) from error
    _answered(address, home, lambda scheduler: scheduler.set_metadata(keys=SERVICES, value=asdict(services)))


def answers_back(address: SchedulerAddress, home: Path, host: str) -> str | None:
    """Have the scheduler connect to a new port on `host`; the error, or None. Results travel over connections that the
    scheduler opens, so that a worker behind a firewall or NAT would hang."""
    return asyncio.run(_answers_back(address, home, host))


async def _seen(scheduler: Any) -> Seen:
    identity = await scheduler.identity(n_workers=-1)
    versions = await scheduler.versions()
    services = await scheduler.get_metadata(keys=SERVICES, default=None)
    excluded = await scheduler.get_metadata(keys=EXCLUDED, default=None)
    mark, before = uuid.uuid4().hex, time.time()
    await scheduler.log_event(topic=CLOCK, msg=mark)
    middle = (before + time.time()) / 2
    stamped = [when for when, what in await scheduler.events(topic=CLOCK) if what == mark]
    packages = {name: str(version) for name, version in versions["packages"].items() if version is not None}
    why = {at: f"in {excluded['run']}: {reason}" for at, reason in excluded["workers"].items()} if excluded else {}
    running = ((at, worker) for at, worker in identity["workers"].items() if worker["status"] == "running")
    workers = (_worker_seen(at, worker, why.get(at, "")) for at, worker in running)
    return Seen(
        workers=tuple(sorted(workers, key=lambda worker: worker.name)),
        services=addresses(services or {}),
        versions={**packages, "python": packages["python"].split(".final")[0]},
        clock=stamped[0] - middle,
    )


async def _answers_back(address: SchedulerAddress, home: Path, host: str) -> str | None:
    from distributed.core import Server

    security = _security(address, home)
    async with Server({}, needs_workdir=False, connection_args=security.get_connection_args("worker")) as listener:  # type: ignore[no-untyped-call]
        await listener.listen(f"{address.scheme}://{bracketed(host)}:0", **security.get_listen_args("worker"))  # type: ignore[no-untyped-call]
        async with _scheduler(address, home) as scheduler:
            try:
                asked = scheduler.proxy(msg={"op": "identity"}, worker=listener.address)
                await asyncio.wait_for(asked, SECONDS)
            except TimeoutError:
                return f"no connection within {SECONDS:g} s"
            except OSError as error:
                return str(error).partition("\n")[0]
    return None


def _answered(address: SchedulerAddress, home: Path, question: Callable[[Any], Awaitable[T]]) -> T:
    async def in_time() -> T:
        async with _scheduler(address, home) as scheduler:
            return await asyncio.wait_for(question(scheduler), SECONDS)

    try:
        return asyncio.run(in_time())
    except (OSError, TimeoutError) as error:
        raise OSError(f"the scheduler at {address} does not answer: {str(error) or 'no answer in time'}") from error


def _scheduler(address: SchedulerAddress, home: Path) -> Any:
    from distributed.core import rpc

    security = _security(address, home)
    return rpc(str(address), connection_args=security.get_connection_args("client"), timeout=SECONDS)  # type: ignore[no-untyped-call]


def _security(address: SchedulerAddress, home: Path) -> "Security":
    from distributed import Security  # here, as in these others, because it takes half a second to import

    return dask_security(home) if address.scheme == "tls" else Security()  # type: ignore[no-untyped-call]


def _worker_seen(address: str, worker: Mapping[str, Any], excluded: str) -> WorkerSeen:
    said = worker["metrics"].get(METRIC) or {}
    tags = [tag for tag, amount in worker["resources"].items() if amount >= 1]
    pace = said.get("tokens_per_second")
    return WorkerSeen(
        name=worker_name(worker["name"]),
        address=address,
        device=str(said.get("device") or next((tag for tag in DEVICES if tag in tags), "?")),
        roles=tuple(role.lower() for role in ROLES if role in tags),
        resources=worker["resources"],
        versions=said.get("versions", {}),
        tokens_per_second=None if pace is None else float(pace),
        last_seen=max(0.0, time.time() - float(worker["last_seen"])),
        excluded=excluded,
    )
