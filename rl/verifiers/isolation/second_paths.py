"""Other paths to a place, by mounts of the same file system (Linux): `/nfs/home` beside `/home`. See
proc_pid_mountinfo(5)."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

MOUNTS = Path("/proc/self/mountinfo")


@dataclass(frozen=True)
class Mount:
    """A folder, or a file, of a file system at a path."""

    device: str
    root: Path  # in the file system
    at: Path


def of(places: Iterable[Path]) -> list[Path]:
    """Where each place, or a part of it, or what is mounted in it, is besides: there or not. Not within the place."""
    mounts = _mounts()
    return [path for place in places for path in _others(place.resolve(), mounts)]


def _others(place: Path, mounts: Sequence[Mount]) -> list[Path]:
    # of two at one path the later one is seen
    around = max((mount for mount in reversed(mounts) if place.is_relative_to(mount.at)), key=_depth, default=None)
    if around is None:
        return []
    held = [(around, around.root / place.relative_to(around.at))]
    held += [(mount, mount.root) for mount in mounts if mount is not around and mount.at.is_relative_to(place)]
    found = []
    for own, inside in held:
        for mount in mounts:
            if mount.device != own.device or mount is own:
                continue
            if inside.is_relative_to(mount.root):
                found.append(mount.at / inside.relative_to(mount.root))
            elif mount.root.is_relative_to(inside):
                found.append(mount.at)
    return [path for path in found if not path.is_relative_to(place)]


def _depth(mount: Mount) -> int:
    return len(mount.at.parts)


def _mounts() -> list[Mount]:
    try:
        lines = MOUNTS.read_text(errors="surrogateescape").splitlines()
    except OSError:
        return []  # no Linux
    fields = (line.split(" ") for line in lines)
    return [Mount(device, _path(root), _path(at)) for _, _, device, root, at, *_ in fields]


def _path(word: str) -> Path:
    """Blanks and the like are octal in it."""
    return Path(re.sub(r"\\([0-7]{3})", lambda found: chr(int(found[1], 8)), word))
