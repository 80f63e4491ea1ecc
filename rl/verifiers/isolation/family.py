"""Processes and what they have started, as /proc shows it; by ps elsewhere."""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

STATE, PARENT, THREADS = 0, 1, 17  # fields of /proc/<pid>/stat after the name

Tree = dict[int, list[int]]  # the children of a process


def children(pid: int) -> list[int]:
    with suppress(OSError):
        if sys.platform == "linux":
            tasks = os.listdir(f"/proc/{pid}/task")  # noqa: PTH208  each thread has children of its own
            listed = [Path(f"/proc/{pid}/task/{task}/children") for task in tasks]
            # without that file, which a kernel may lack, all processes are looked through
            there = Path(f"/proc/self/task/{os.getpid()}/children").exists()
            texts = [_read(path) for path in listed] if there else []
            return [int(one) for text in texts for one in text.split()] if there else running().get(pid, [])
    return []  # elsewhere orphans come to nobody of ours


def below(pid: int) -> list[int]:
    """Every process below, in those that run now."""
    found, above = [], [pid]
    while above:
        above = [child for one in above for child in children(one)]
        found += above
    return found


def is_second(pid: int) -> bool:
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        return any(line.startswith("NSpid:") and line.split()[-1] == "2" for line in lines)
    return True  # it has gone


def descendants() -> list[int]:
    """All of them that run."""
    tree, found, below = running(), [], [os.getpid()]
    while below:
        children = tree.get(below.pop(), [])
        found += children
        below += children
    return found


def running() -> Tree:
    """Every process that is no zombie, under its parent."""
    tree: Tree = {}
    if sys.platform != "linux":
        with subprocess.Popen(["ps", "-axo", "pid=,ppid=,stat="], stdout=subprocess.PIPE, text=True) as ps:
            rows = [line.split(maxsplit=2) for line in ps.communicate()[0].splitlines()]
        for pid, parent, state in rows:
            if not state.startswith("Z") and int(pid) != ps.pid:
                tree.setdefault(int(parent), []).append(int(pid))
        return tree
    for name in _numbers():
        with suppress(OSError):
            fields = Path("/proc", name, "stat").read_text(errors="replace").rpartition(")")[2].split()
            if fields[STATE] not in "ZX" or int(fields[THREADS]) > 1:  # its first thread alone may have ended
                tree.setdefault(int(fields[PARENT]), []).append(int(name))
    return tree


def processes_of(user: int | None) -> int:
    """How many threads a user runs: that is what the limit on processes counts."""
    wanted, count = str(os.getuid() if user is None else user), 0
    if sys.platform != "linux":
        return 0
    for name in _numbers():
        with suppress(OSError):
            lines = Path("/proc", name, "status").read_text(errors="replace").splitlines()
            of = dict(line.split(":", 1) for line in lines if line.startswith(("Uid:", "Threads:")))
            if of["Uid"].split()[0] == wanted:
                count += int(of["Threads"])
    return count


def _numbers() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  a Path each would cost more


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text()
    return ""  # it has gone
