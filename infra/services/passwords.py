"""The passwords of a home's services: made once, kept in a file that only its owner reads."""

import fcntl
import json
import secrets
from pathlib import Path

from infra import disk
from infra.storage.typed import read_typed

FILE = "secrets.json"
USER = "rlvf"  # of every service


def kept_password(home: Path, name: str) -> str | None:
    """The password of the service of that name, None if there is none yet."""
    found = _read(home).get(name)
    return str(found) if found else None


def password(home: Path, name: str) -> str:
    """The password of the service of that name, made now if there is none yet."""
    kept = kept_password(home, name)
    if kept is not None:
        return kept
    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    with (home / f".{FILE}.lock").open("a") as lock:  # two processes may make their first at the same time
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = _read(home)
        if name not in known:
            known[name] = secrets.token_urlsafe(24)
            disk.write_file(home / FILE, json.dumps(known).encode(), 0o600)
        return str(known[name])


def auth_of(home: Path, name: str) -> str:
    """user:password of the service of that name."""
    return f"{USER}:{password(home, name)}"


def _read(home: Path) -> dict[str, str]:
    return read_typed(home / FILE, dict[str, str], "remove it, and new passwords are made") or {}
