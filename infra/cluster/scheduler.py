"""What a Dask scheduler knows: its workers, and where the other services are."""

import asyncio
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from distributed import Security, rpc

from infra.cluster.placement import DEVICES, ROLES
from infra.cluster.reach import UnreachableError, parse_address, reach
from infra.security.tls import dask_security
from infra.services.addresses import Addresses, addresses

KEYS = ["rlvf", "services"]  # of the scheduler's metadata


@dataclass(frozen=True)
class WorkerSeen:
    """A worker as the scheduler sees it."""

    name: str
    address: str
    device: str  # what it is, or the tag where the worker has not said
    roles: tuple[str, ...]
    tokens_per_second: float | None  # when it last generated
    last_seen: float  # seconds ago


@dataclass(frozen=True)
class Seen:
    """What a scheduler said when it was asked."""

    workers: tuple[WorkerSeen, ...]
    services: Addresses


def ask(address: str, home: Path, seconds: float = 5.0) -> Seen:
    """Ask the scheduler. Raises `UnreachableError`, `SecurityError` without certificates for tls://, `OSError`."""

    async def both(scheduler: Any) -> tuple[Any, Any]:
        return await scheduler.identity(n_workers=-1), await scheduler.get_metadata(keys=KEYS, default={})

    reach(parse_address(address, home), home)  # it says in one line what is wrong
    identity, services = _call(address, home, seconds, both)
    workers = (_seen(at, worker) for at, worker in identity["workers"].items())
    return Seen(tuple(sorted(workers, key=lambda worker: worker.name)), addresses(services or {}))


def announce(address: str, home: Path, services: Addresses, seconds: float = 5.0) -> None:
    """Tell the scheduler where the other services are, for whoever asks it. Raises `OSError`."""

    async def tell(scheduler: Any) -> None:
        await scheduler.set_metadata(keys=KEYS, value=asdict(services))

    try:
        reach(parse_address(address, home), home)  # Dask itself would try again and again
    except UnreachableError as error:
        raise OSError(error.why) from error
    _call(address, home, seconds, tell)


def _call(address: str, home: Path, seconds: float, work: Any) -> Any:
    security = dask_security(home) if address.startswith("tls://") else Security()  # type: ignore[no-untyped-call]
    arguments = security.get_connection_args("client")  # type: ignore[no-untyped-call]

    async def connected() -> Any:
        remote = rpc(address, timeout=seconds, connection_args=arguments)  # type: ignore[no-untyped-call]
        async with remote as scheduler:
            return await asyncio.wait_for(work(scheduler), seconds)

    try:
        return asyncio.run(connected())
    except (OSError, TimeoutError) as error:
        raise OSError(f"the scheduler at {address} does not answer: {error or 'no answer in time'}") from error


def _seen(address: str, worker: Mapping[str, Any]) -> WorkerSeen:
    said = worker.get("metrics", {}).get("rlvf") or {}
    tags = [tag for tag, amount in worker.get("resources", {}).items() if amount >= 1]
    pace = said.get("tokens_per_second")
    return WorkerSeen(
        name=str(worker.get("name", address)),
        address=address,
        device=str(said.get("device") or next((tag for tag in DEVICES if tag in tags), "?")),
        roles=tuple(role.lower() for role in ROLES if role in tags),
        tokens_per_second=None if pace is None else float(pace),
        last_seen=max(0.0, time.time() - float(worker.get("last_seen", 0))),
    )
