"""Processes and their descendants, by /proc; by ps where there is none."""

import os
import subprocess
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

STATE, PARENT, USER, SYSTEM, THREADS = 0, 1, 11, 12, 17  # fields of /proc/<pid>/stat after the name

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
    """Every descendant of a process, found from parent to child."""
    found, above = [], [pid]
    while above:
        above = [child for one in above for child in children(one)]
        found += above
    return found


def is_second(pid: int) -> bool:
    """Whether the process is the second of its namespace of processes."""
    with suppress(OSError):
        return status(pid).get("NSpid", "").split()[-1:] == ["2"]
    return True  # it has gone


def descendants() -> list[int]:
    """Every descendant of this process that runs, found in one list of all processes."""
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
            of = status(name)
            if of["Uid"].split()[0] == wanted:
                count += int(of["Threads"])
    return count


def status(pid: int | str) -> dict[str, str]:
    """The fields of /proc/<pid>/status, see proc_pid_status(5). Raises OSError."""
    text = Path(f"/proc/{pid}/status").read_text(errors="replace")
    # a process may have any name: the kernel escapes a line feed in it, and nothing else that divides lines
    return dict(line.split(":", 1) for line in text.split("\n") if ":" in line)


def activity(pids: Iterable[int]) -> dict[tuple[int, str], object] | None:
    """What differs once one of the threads of these processes has run: of each the time that it has taken, and how
    often it has given up its processor or lost it. None where one runs right now, or cannot be looked at."""
    found: dict[tuple[int, str], object] = {}
    try:
        for pid in pids:
            for task in os.listdir(f"/proc/{pid}/task"):  # noqa: PTH208
                at = f"/proc/{pid}/task/{task}"
                fields = Path(at, "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[STATE] == "R":
                    return None
                switches = Path(at, "status").read_text(errors="replace").rpartition("\nvoluntary_ctxt_switches")[2]
                found[pid, task] = (*fields[USER : SYSTEM + 1], switches)
    except OSError:
        return None
    return found


def _numbers() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  a Path each would cost more


def _read(path: Path) -> str:
    with suppress(OSError):
        return path.read_text()
    return ""  # it has gone
