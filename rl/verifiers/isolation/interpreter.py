"""Where Python and its packages lie, and what a user without rights lacks on the way there.

Root's own Python is often below a folder that only root enters (/root). The user that a verifier of root's becomes is
given no right to pass it: it gets a view in which that folder is empty but for Python.
"""

import functools
import importlib.metadata
import json
import os
import stat
import sys
import sysconfig
import urllib.parse
import urllib.request
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

OWN = Path(__file__).parents[3]
# by themselves too: a prefix, or OWN, may be the home of a user and closed as that
PARTS = ("bin", "lib", "lib64", "pyvenv.cfg")


class UnreadableError(ValueError):
    """Python that only its owner may read: one line."""


@dataclass(frozen=True)
class View:
    """A view of the files in which others may enter what only root may otherwise."""

    closed: tuple[str, ...] = ()  # folders to replace by empty ones
    kept: tuple[str, ...] = ()  # what stays in them, none inside another


NOTHING_CLOSED = View()


def folders() -> list[str]:
    """The folders that Python and its packages are read from, as they are named and where links lead."""
    links: list[str] = []
    link = Path(sys.executable).absolute()
    while link.is_symlink() and len(links) < 40:
        link = link.parent / link.readlink()
        links.append(os.path.normpath(link.parent))
    named = [sys.prefix, sys.base_prefix, str(OWN), *links, *sys.path]
    named += [f"{prefix}/{part}" for prefix in (sys.prefix, sys.base_prefix) for part in PARTS]
    named += [str(OWN / "rl"), *_editable()]
    there = [Path(path).absolute() for path in named if path and Path(path).exists()]
    return sorted({str(one) for path in there for one in (path, path.resolve())})


@functools.cache
def _editable() -> tuple[str, ...]:
    """The folders of packages that were installed to be edited where they are (PEP 610): on `sys.path` there may be
    nothing but what finds them."""
    found = []
    for package in importlib.metadata.distributions():
        with suppress(OSError, ValueError, AttributeError, TypeError):  # a package's own mistake
            origin = json.loads(package.read_text("direct_url.json") or "{}")
            where = urllib.parse.urlsplit(origin.get("url", ""))
            if where.scheme == "file" and origin.get("dir_info", {}).get("editable"):
                found.append(urllib.request.url2pathname(where.path))
    return tuple(found)


def view(reads: Sequence[str] = ()) -> View:
    """The view in which the user that root becomes can run Python, and finds what ``reads`` names; for other users, who
    stay what they are, nothing is closed. Raises UnreadableError where no view is enough."""
    if os.geteuid():
        return NOTHING_CLOSED
    closed: dict[str, set[str]] = {}
    for path in (*folders(), *(path for path in reads if Path(path).exists())):
        above = next((str(one) for one in reversed(Path(path).parents) if not _entered(one)), None)
        if above is not None and _read(Path(path)):
            closed.setdefault(str(Path(above).resolve()), set()).add(path)
    every = sorted(path for paths in closed.values() for path in paths)
    kept = [path for path in every if not any(Path(path).is_relative_to(other) for other in every if other != path)]
    _require_readable(kept)
    return View(tuple(sorted(closed)), tuple(kept))


def _require_readable(kept: list[str]) -> None:
    """Raise UnreadableError for a folder that Python cannot do without and that no view opens."""
    paths = sysconfig.get_paths()
    needed = [Path(sys.executable), *(Path(paths[name]) for name in ("stdlib", "purelib", "platlib")), Path(__file__)]
    for path in [one for found in needed for one in (found.absolute(), found.resolve()) if one.exists()]:
        shown = next((Path(top) for top in kept if path.is_relative_to(top)), Path("/"))
        for one in [path, *(above for above in path.parents if above.is_relative_to(shown))]:
            if not _read(one):
                raise UnreadableError(
                    f"a verifier of root's runs as another user, to whom Python's {one} is closed: chmod -R o+rX {one}"
                )


def _entered(folder: Path) -> bool:
    return bool(folder.stat().st_mode & stat.S_IXOTH)


def _read(path: Path) -> bool:
    mode = path.stat().st_mode
    wanted = stat.S_IROTH | (stat.S_IXOTH if stat.S_ISDIR(mode) else 0)
    return mode & wanted == wanted
