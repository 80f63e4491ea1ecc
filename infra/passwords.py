"""The passwords that the services of a home share: made once, kept in a file that only its owner reads."""

import json
import os
import secrets
from pathlib import Path

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
        _write(home, kept)
    return str(kept[name])


def _read(home: Path) -> dict[str, str]:
    path = home / FILE
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise ValueError(f"{path} is damaged; remove it, and new passwords are made") from error


def _write(home: Path, kept: dict[str, str]) -> None:
    home.mkdir(parents=True, exist_ok=True)
    made = home / f".{FILE}.{secrets.token_hex(4)}.tmp"
    with os.fdopen(os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        json.dump(kept, file)
    made.replace(home / FILE)
