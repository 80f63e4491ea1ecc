"""What a Dask scheduler says when asked, without running anything on it or joining it."""

import asyncio
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from distributed import Security
from distributed.core import Server, rpc

from infra.cluster.pace import METRIC
from infra.cluster.reach import SchedulerAddress
from infra.security.tls import dask_security

SERVICES = ["rlvf", "services"]  # where `rlvf up` puts the addresses of everything into the scheduler's metadata
CLOCK = "rlvf-clock"  # an event topic: the scheduler stamps what is logged
SECONDS = 10.0


@dataclass(frozen=True)
class Seen:
    """One worker as the scheduler knows it."""

    address: str
    name: str
    resources: Mapping[str, float]
    versions: Mapping[str, str]  # empty unless it runs rlvf and has said so


@dataclass(frozen=True)
class Enquiry:
    """A scheduler's answers."""

    workers: tuple[Seen, ...]
    versions: Mapping[str, str]  # of the scheduler's Python and packages
    services: Mapping[str, str]  # prefect, mlflow, dashboard, storage; empty without `rlvf up`
    clock: float  # seconds that its clock is ahead of ours


def enquire(address: SchedulerAddress, home: Path) -> Enquiry:
    """Ask a scheduler that `reach` has found. Raises `OSError`, and `SecurityError` without certificates."""
    return asyncio.run(asyncio.wait_for(_enquire(address, home), SECONDS))


def answers_back(address: SchedulerAddress, home: Path, host: str) -> str | None:
    """Have the scheduler connect to a port that is opened on `host` for that; what went wrong, or None.

    Results travel over connections that the scheduler opens, so a worker behind a firewall or NAT would hang.
    """
    return asyncio.run(_answers_back(address, home, host))


async def _enquire(address: SchedulerAddress, home: Path) -> Enquiry:
    async with _scheduler(address, home) as scheduler:
        identity = await scheduler.identity(n_workers=-1)
        versions = await scheduler.versions()
        services = await scheduler.get_metadata(keys=SERVICES, default=None)
        mark, before = uuid.uuid4().hex, time.time()
        await scheduler.log_event(topic=CLOCK, msg=mark)
        middle = (before + time.time()) / 2
        stamped = [when for when, what in await scheduler.events(topic=CLOCK) if what == mark]
    packages = {name: str(version) for name, version in versions["packages"].items() if version is not None}
    return Enquiry(
        tuple(
            Seen(where, str(worker["name"]), worker["resources"], worker["metrics"].get(METRIC, {}).get("versions", {}))
            for where, worker in identity["workers"].items()
            if worker["status"] == "running"
        ),
        {**packages, "python": packages["python"].split(".final")[0]},
        {name: str(value) for name, value in (services or {}).items()},
        stamped[0] - middle,
    )


async def _answers_back(address: SchedulerAddress, home: Path, host: str) -> str | None:
    security = _security(address, home)
    async with Server({}, needs_workdir=False, connection_args=security.get_connection_args("worker")) as listener:  # type: ignore[no-untyped-call]
        where = f"{address.scheme}://{f'[{host}]' if ':' in host else host}:0"
        await listener.listen(where, **security.get_listen_args("worker"))  # type: ignore[no-untyped-call]
        async with _scheduler(address, home) as scheduler:
            try:
                asked = scheduler.proxy(msg={"op": "identity"}, worker=listener.address)
                await asyncio.wait_for(asked, SECONDS)
            except TimeoutError:
                return f"no connection within {SECONDS:g} s"
            except OSError as error:
                return str(error).partition("\n")[0]
    return None


def _scheduler(address: SchedulerAddress, home: Path) -> Any:
    security = _security(address, home)
    return rpc(str(address), connection_args=security.get_connection_args("client"), timeout=SECONDS)  # type: ignore[no-untyped-call]


def _security(address: SchedulerAddress, home: Path) -> Security:
    return dask_security(home) if address.scheme == "tls" else Security()  # type: ignore[no-untyped-call]
