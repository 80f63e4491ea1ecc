"""The services of a home: where they are, which of them run, and what an `rlvf up` that was killed has left."""

import os
from collections.abc import Callable
from pathlib import Path

from infra.security.identity import installed_settings
from infra.security.secrets import without_userinfo
from infra.services.addresses import Addresses, is_up, read_up
from infra.services.part import TITLES, end_stragglers
from infra.services.prefect_server import service_of
from infra.services.supervisor import Service

STOPPING = ("worker", "machine", "scheduler", "mlflow", "prefect")  # in this order: each uses those after it


def known_addresses(home: Path, scheduler: str | None = None, *, up_first: bool = False) -> Addresses:
    """The services that a command of this home uses, found without asking any of them.

    A `scheduler` that the command names stands alone: its services are others. Else each address is that of the
    environment, which is what `rlvf train` joins, of this home's `rlvf up`, or of the installed bundle; with `up_first`
    the first two change places. What an `rlvf up` that was killed has left comes last.
    """
    if scheduler is not None:
        return Addresses(scheduler=scheduler)
    environment = Addresses(
        prefect=without_userinfo(os.environ.get("PREFECT_API_URL", "")) or None,
        mlflow=without_userinfo(os.environ.get("MLFLOW_TRACKING_URI", "")) or None,
        scheduler=os.environ.get("RLVF_SCHEDULER") or None,
        storage=os.environ.get("RLVF_STORAGE") or None,
    )
    up = read_up(home)
    own = up.addresses if up is not None else Addresses(prefect=server_of(home))
    settings = installed_settings(home)
    bundle = Addresses()
    if settings is not None:
        bundle = Addresses(scheduler=settings.scheduler, storage=settings.environment.get("RLVF_STORAGE"))
    if up is not None and not is_up(home):
        return environment.or_else(bundle).or_else(own)
    known = own.or_else(environment) if up_first else environment.or_else(own)
    return known.or_else(bundle)


def take_down_leftovers(home: Path, say: Callable[[str], None]) -> int:
    """Stop the services that a killed `rlvf up` has left, say which, and return how many."""
    stopped = [name for name in STOPPING if _service(home, name).stop_unused()]
    for service in (_service(home, name) for name in STOPPING):
        if not service.lives():
            end_stragglers(service)
    for name in stopped:
        say(f"stopped the {TITLES[name]}")
    return len(stopped)


def server_of(home: Path) -> str | None:
    """The address of the home's own Prefect server, if it lives."""
    service = service_of(home)
    return service.found().url if service.lives() else None


def living(home: Path) -> list[str]:
    """The names of the services of this home that run."""
    return [name for name in STOPPING if _service(home, name).lives()]


def _service(home: Path, name: str) -> Service:
    if name == "prefect":
        return service_of(home)
    return Service(home / "services" / name, home / "logs" / f"{name}.log")


def held(home: Path, name: str) -> Service:
    """The service of that name, used by this process from now on."""
    service = _service(home, name)
    service.hold()
    return service
