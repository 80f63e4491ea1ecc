"""What is shown of this machine's files, as the largest trees that hold nothing closed.

Both sandboxes show trees and nothing else. What a closed place lies in is no tree: of it the entries are shown that it
had when the view was made, so that what is written, renamed or made anew there later is not in the view either. The
longest path decides: a place that is kept in a closed one is shown, and one that is closed in a kept one is not.
"""

import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MOST = 500  # entries that are shown one by one; of more around something closed what is kept, or `covered`


@dataclass(frozen=True)
class Folder:
    """Around something closed, or closed: to be made anew."""

    path: str
    rights: int
    covers: bool = False  # what a tree around it shows there


@dataclass(frozen=True)
class Link:
    path: str
    target: str


@dataclass(frozen=True)
class Tree:
    path: str


@dataclass(frozen=True)
class Mask:
    """A closed file in a tree."""

    path: str


Seen = Folder | Link | Tree | Mask


def shown(closed: Iterable[str], kept: Iterable[str], *, covered: bool = False) -> list[Seen]:
    """The view without what is closed, but for what is kept in it; parents come before what lies in them. Neither has
    to exist; of the same path closed is stronger.

    With ``covered`` a kept folder of more than MOST entries is one tree, in which what is closed is covered: what is
    made anew there later, by the name of something closed, is in the view then.
    """
    marks: dict[Path, bool] = {}
    shut = {one for path in closed for one in _names(Path(path))}
    for name in map(Path, kept):
        real = name.resolve()
        marks |= {name: True, real: True}
        # a link to a kept folder leads to what is closed in it
        shut |= {name / path.relative_to(real) for path in shut if path.is_relative_to(real)}
    return _Walk(marks | dict.fromkeys(shut, False), covered).of(Path("/"))


class _Walk:
    def __init__(self, marks: dict[Path, bool], covered: bool) -> None:
        self._marks = marks  # whether it is kept, or closed
        self._covered = covered
        self._ways = {above for path in marks for above in path.parents}  # to something closed or kept
        self._to_closed = {above for path, keeps in marks.items() if not keeps for above in path.parents}
        self._to_kept = {above for path, keeps in marks.items() if keeps for above in path.parents}
        self._seen: list[Seen] = []

    def of(self, top: Path) -> list[Seen]:
        self._visit(top, self._marks.get(top, True))
        return self._seen

    def _visit(self, path: Path, shows: bool) -> None:
        if shows and path not in self._to_closed:
            self._seen.append(Tree(str(path)))
        elif shows:
            entries = self._entries(path)
            if self._covered and len(entries) > MOST:
                self._cover(path)
                return
            self._seen.append(Folder(str(path), stat.S_IMODE(path.stat().st_mode)))
            for entry in entries:
                self._visit_entry(entry, self._marks.get(entry, True))
        elif path.is_dir():
            self._close(path)

    def _close(self, folder: Path, *, covers: bool = False) -> None:
        self._seen.append(Folder(str(folder), 0o755, covers))
        on_the_way = self._to_kept | {one for one, keeps in self._marks.items() if keeps}
        for entry in sorted(_lying_in(folder, on_the_way)):
            self._visit_entry(entry, self._marks.get(entry, False))

    def _cover(self, top: Path) -> None:
        self._seen.append(Tree(str(top)))
        closed = sorted(path for path, keeps in self._marks.items() if not keeps and path.is_relative_to(top))
        for path in [one for one in closed if not any(above in closed for above in one.parents)]:
            if path.is_dir() and not path.is_symlink():  # a link's target is closed, too
                self._close(path, covers=True)
            elif path.parent.is_dir():
                copies = (one for one in path.parent.iterdir() if one == path or _is_copy(one, path.name))
                self._seen += [Mask(str(one)) for one in sorted(copies) if not one.is_symlink()]

    def _visit_entry(self, path: Path, shows: bool) -> None:
        with suppress(OSError):  # gone, or nothing that this user may look at
            if shows and path.is_symlink() and path not in self._marks:
                self._seen.append(Link(str(path), str(path.readlink())))
                return
            path.stat()
            self._visit(path, shows)

    def _entries(self, folder: Path) -> list[Path]:
        """What is shown, perhaps in part, of a folder around something closed."""
        closed = [path for path in _lying_in(folder, self._marks) if not self._marks[path]]
        names = [path.name for path in closed if not path.is_dir()]
        try:
            entries = sorted(folder.iterdir())
        except OSError:
            return sorted(_lying_in(folder, self._to_kept | set(self._marks)))
        kept = next((self._marks[one] for one in (folder, *folder.parents) if one in self._marks), False)
        few = kept or len(entries) <= MOST
        return [
            entry
            for entry in entries
            if entry in self._marks or entry in self._ways or (few and not any(_is_copy(entry, name) for name in names))
        ]


def _lying_in(folder: Path, paths: Iterable[Path]) -> list[Path]:
    """Those of the paths; the top is its own parent, and does not lie in itself."""
    return [path for path in paths if path.parent == folder != path]


def _is_copy(entry: Path, name: str) -> bool:
    """Whether a file lies there until it is renamed to ``name``, or is an earlier one: `key.lock`, `.key.swp`."""
    return entry.name.startswith((f"{name}.", f"{name}~", f".{name}")) and not entry.is_dir()


def _names(path: Path) -> set[Path]:
    """The names of a place without links on the way: of the link, and of where it leads."""
    return {path.parent.resolve() / path.name, path.resolve()}
