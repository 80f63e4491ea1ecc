"""What there is to know about a service: its `server.json`."""

from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter

from infra.storage.typed import DamagedError, read_typed


class _Known(BaseModel):
    """Beside it is whatever the service's user has told: its address, say."""

    model_config = ConfigDict(extra="allow")

    pid: int | None = None  # of its supervisor
    machine: str = ""
    stop_seconds: float = 0.0
    url: str | None = None


_KNOWN = TypeAdapter(_Known)


def read_known(path: Path) -> dict[str, Any]:
    """What the file says; nothing where it is not there, or damaged: the next start writes it anew."""
    try:
        found = read_typed(path, _KNOWN, "")
    except (OSError, DamagedError):
        return {}
    return {} if found is None else found.model_dump(exclude_unset=True)
