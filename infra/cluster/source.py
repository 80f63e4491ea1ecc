"""Which source of rlvf a process runs: the version number stays the same from one release to the next."""

import hashlib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

SOURCE = "rlvf source"  # beside the versions of packages
UNKNOWN = "unknown"  # the source of an older worker, which announces versions without it
ROOT = Path(__file__).parents[2]
_PACKAGES = ("flows", "infra", "rl", "tasks")
_KINDS = ("*.py", "*.c", "*.h")
_DIGITS = 12  # against mistakes, not against people


@cache
def source_digest() -> str:
    """A digest of the names and bytes of our files of code, as this process found them when it was first asked."""
    return digest_of(ROOT)


def digest_of(root: Path) -> str:
    """The digest of a copy at `root`. Line ends count: git keeps them as they are."""
    found = (path for name in _PACKAGES for kind in _KINDS for path in (root / name).rglob(kind))
    files = {path.relative_to(root).as_posix(): path for path in found if path.is_file()}  # no editor's lock
    digest = hashlib.sha256()
    for name, path in sorted(files.items()):
        text = path.read_bytes()
        digest.update(f"{name}\0{len(text)}\0".encode())
        digest.update(text)
    return digest.hexdigest()[:_DIGITS]


def announced(versions: Mapping[str, str]) -> str:
    """The digest that a worker announces among its versions; empty where it announces none of them."""
    return versions.get(SOURCE, UNKNOWN) if versions else ""
