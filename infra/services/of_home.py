"""The services of a home, by name: which of them run, and what an `rlvf up` that was killed has left."""

from collections.abc import Callable
from pathlib import Path

from infra.services.part import TITLES, end_stragglers
from infra.services.supervisor import Service

STOPPING = ("worker", "machine", "scheduler", "mlflow", "prefect")  # in this order: each uses those after it


def take_down_leftovers(home: Path, say: Callable[[str], None]) -> int:
    """Stop what an `up` that was killed has left, and say what; gives how many that were."""
    stopped = [name for name in STOPPING if _service(home, name).stop_unused()]
    for service in (_service(home, name) for name in STOPPING):
        if not service.lives():
            end_stragglers(service)
    for name in stopped:
        say(f"stopped the {TITLES[name]}")
    return len(stopped)


def living(home: Path) -> list[str]:
    """The services of this home that run."""
    return [name for name in STOPPING if _service(home, name).lives()]


def _service(home: Path, name: str) -> Service:
    if name == "prefect":
        return Service(home / "prefect", home / "logs" / "prefect-server.log")
    return Service(home / "services" / name, home / "logs" / f"{name}.log")


def held(home: Path, name: str) -> Service:
    """The service of that name, used by this process from now on."""
    service = _service(home, name)
    service.hold()
    return service
