"""What the processes below a supervisor hold together (Linux): memory, and files that no name leads to.

A limit on address space is one process's, and shared memory, files in memory and deleted files are in no process's. A
size that cannot be seen counts as the most that it may be. See proc_pid_maps(5), proc_pid_smaps(5), tmpfs(5).
"""

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from rl.verifiers.isolation import family

FILE_BYTES = 64 * 2**20  # that one file may have: `rl.verifiers.isolation.confinement`
INODE_BYTES = 1024  # of a file in memory, at least
IN_MEMORY = (b"/memfd:", b"/dev/zero", b"/SYSV", b"/anon_hugepage")  # how the kernel calls memory that has a file
_DELETED = b" (deleted)"
_CARRIED = re.compile(rb"^scm_fds:\s+[1-9]", re.MULTILINE)
_SHARED = re.compile(rb"^Shmem:\s+(\d+) kB$", re.MULTILINE)
_OWN = re.compile(rb"^(?:Pss_Anon|SwapPss|Shared_Hugetlb|Private_Hugetlb|RssAnon|VmSwap):\s+(\d+) kB$", re.MULTILINE)

Key = tuple[int, int]  # device and number of a file


@dataclass
class Held:
    """What some processes hold, in bytes; what several of them share counts once."""

    own: int = 0  # memory of their own
    tasks: int = 0  # processes and threads
    memory: dict[Key, int] = field(default_factory=dict)  # files in memory
    unsure: bool = False  # whether one of them may hold more than is seen of it
    deleted: dict[int, int] = field(default_factory=dict)  # files on disk without a name, by number
    mapped: dict[int, int] = field(default_factory=dict)  # the same, seen in a process's memory
    mounted: dict[int, int] = field(default_factory=dict)  # /dev/shm by its device, where it is the process's own
    sockets: set[bytes] = field(default_factory=set)
    carrying: set[bytes] = field(default_factory=set)  # sockets with open files in them that nobody has received

    @property
    def memory_bytes(self) -> int:
        return self.own + sum(self.memory.values()) + sum(self.mounted.values()) + len(self.sockets) * SOCKET_BYTES

    @property
    def disk_bytes(self) -> int:
        return sum({**self.mapped, **self.deleted}.values())


def held(pids: Iterable[int], private: bool) -> tuple[list[int], Held]:
    """The processes that cannot be looked into, and what the others hold; ``private`` says that they have a /dev/shm of
    their own, in memory."""
    closed, found = [], Held()
    for pid in pids:
        try:
            _measure(pid, found, private)
        except PermissionError:
            if _runs(pid):
                closed.append(pid)
        except OSError:
            pass  # it has gone
    return closed, found


def _measure(pid: int, found: Held, private: bool) -> None:
    at = f"/proc/{pid}"
    if private:
        mount = Path(at, "root", "dev", "shm")  # as the process sees it
        own = mount.stat().st_dev
        if own not in found.mounted:
            shm = os.statvfs(mount)
            found.mounted[own] = (shm.f_blocks - shm.f_bfree) * shm.f_frsize + (shm.f_files - shm.f_ffree) * INODE_BYTES
    tasks = os.listdir(f"{at}/task")  # noqa: PTH208  a Path each would cost more
    found.tasks += len(tasks)
    # each thread may have files of its own, and the first may have ended while others go on
    for task in tasks:
        with suppress(FileNotFoundError, ProcessLookupError):
            _look_at_files(f"{at}/task/{task}/fd", found)
    with suppress(FileNotFoundError, ProcessLookupError):
        _look_at_memory(at, f"{at}/task/{tasks[-1]}", found)


def _look_at_files(folder: str, found: Held) -> None:
    for name in os.listdir(folder):  # noqa: PTH208
        with suppress(FileNotFoundError, ProcessLookupError):
            target = os.fsencode(os.readlink(f"{folder}/{name}"))  # noqa: PTH115
            if target.startswith(b"socket:"):
                found.sockets.add(target)
                if _CARRIED.search(_read(f"{folder}info/{name}")):
                    found.carrying.add(target)
            elif target.endswith(_DELETED):
                of = os.stat(f"{folder}/{name}")  # noqa: PTH116
                if target.startswith(IN_MEMORY):
                    found.memory[of.st_dev, of.st_ino] = of.st_blocks * 512
                elif of.st_nlink == 0 and of.st_dev not in found.mounted:
                    found.deleted[of.st_ino] = of.st_blocks * 512


def _look_at_memory(process: str, at: str, found: Held) -> None:
    rollup = _read(f"{at}/smaps_rollup") or _read(f"{at}/status")
    if b"Pss_Anon" not in rollup:
        rollup = _read(f"{at}/status")
    found.own += sum(int(kilobytes) for kilobytes in _OWN.findall(rollup)) * 1024
    mapped = _read(f"{at}/maps")
    for line in mapped.splitlines() if _DELETED in mapped else ():
        if not line.endswith(_DELETED):
            continue
        where, _, offset, device, number, path = line.split(maxsplit=5)
        major, minor = (int(one, 16) for one in device.split(b":"))
        key = (os.makedev(major, minor), int(number))
        try:  # for root alone
            size = os.stat(f"{process}/map_files/{where.decode()}").st_blocks * 512  # noqa: PTH116
        except OSError:
            size = -1
        if path.startswith(IN_MEMORY) or (not found.mounted and path.startswith(b"/dev/shm/")):
            first, last = (int(one, 16) for one in where.split(b"-"))
            found.unsure = found.unsure or size < 0
            end = int(offset, 16) + last - first if size < 0 else size
            found.memory[key] = max(end, found.memory.get(key, 0))
        elif key[0] not in found.mounted:
            found.mapped[key[1]] = FILE_BYTES if size < 0 else size


def shared_on_machine() -> int:
    """Bytes of the files in memory of the whole machine."""
    found = _SHARED.search(_read("/proc/meminfo"))
    return int(found[1]) * 1024 if found is not None else 0


def walked(folder: Path) -> tuple[int, int]:
    """Bytes and files in a folder."""
    size = files = 0
    for path, _, names in os.walk(folder):
        files += len(names) + 1
        for name in names:
            with suppress(OSError):
                size += os.lstat(os.path.join(path, name)).st_blocks * 512  # noqa: PTH118  a Path each would cost more
    return size, files


def _read(path: str) -> bytes:
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123
        return b"".join(iter(lambda: file.read(1 << 16), b""))


def _runs(pid: int) -> bool:
    with suppress(OSError):
        fields = _read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
        return fields[family.STATE] not in (b"Z", b"X") or int(fields[family.THREADS]) > 1
    return False


def _socket_bytes() -> int:
    """The most that one socket holds: twice as much as may be asked for, socket(7)."""
    with suppress(OSError, ValueError):
        return 2 * int(_read("/proc/sys/net/core/wmem_max"))
    return 2 * 212_992


SOCKET_BYTES = _socket_bytes()
