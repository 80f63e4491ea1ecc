"""The passwords that the services of a home share: made once, kept in a file that only its owner reads."""

import json
import secrets
from pathlib import Path

from infra.storage import disk

FILE = "secrets.json"


def kept_password(home: Path, name: str) -> str | None:
    """The password of that name, None if there is none yet."""
    found = _read(home).get(name)
    return str(found) if found else None


def password(home: Path, name: str) -> str:
    """The password of that name, made now if there is none yet."""
    kept = _read(home)
    if name not in kept:
        kept[name] = secrets.token_urlsafe(24)
        disk.write_file(home / FILE, json.dumps(kept).encode(), 0o600)
    return str(kept[name])


def _read(home: Path) -> dict[str, str]:
    path = home / FILE
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{path} is damaged; remove it, and new passwords are made") from error
