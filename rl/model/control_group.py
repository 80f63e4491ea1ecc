"""What the control groups of a process, a container's or a batch job's, leave it of the machine's memory; on Linux."""

import math
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

PROCESS, ROOT = Path("/proc/self/cgroup"), Path("/sys/fs/cgroup")
# of version 2, and of version 1: the folder of memory's groups, the limits, beyond which a process is killed or slowed
# down, what is taken, and, in memory.stat, how much of that are files that nobody has asked for lately
SECOND = ("", ("memory.max", "memory.high"), "memory.current", "inactive_file")
FIRST = ("memory", ("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")


def group_bytes(process: Path = PROCESS, root: Path = ROOT) -> float:
    """Bytes that this process may still take; infinite where no group limits it."""
    lines: list[str] = []
    with suppress(OSError):
        lines = process.read_text().splitlines()
    return min((left for line in lines for left in _left(line, root)), default=math.inf)


def _left(line: str, root: Path) -> Iterator[float]:
    """Of the group that a line names, and of those around it."""
    _, kinds, path = line.split(":", 2)
    if kinds and "memory" not in kinds.split(","):
        return
    kind, limits, taken, idle = FIRST if kinds else SECOND
    top = root / kind
    group = top / path.lstrip("/")
    for folder in (group, *group.parents):
        for limit in limits:
            with suppress(OSError, ValueError):  # there is none, or no limit: `max`
                most = int((folder / limit).read_text())
                said = dict(each.split(" ", 1) for each in (folder / "memory.stat").read_text().splitlines())
                yield most - int((folder / taken).read_text()) + int(said.get(idle, 0))
        if folder == top:
            return
