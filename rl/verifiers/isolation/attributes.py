"""Rights and times of files, which Landlock does not govern: a process under it changes them in its own folder alone.

Seccomp hands each call that changes them to the supervisor, which makes the change itself: of a call that it only let
go on, another thread could change the path before the kernel reads it. See seccomp_unotify(2), openat2(2).
"""

import ctypes
import errno
import fcntl
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from rl.verifiers.isolation.syscalls import ASKED

RECEIVE, SEND, IS_VALID = 0xC0502100, 0xC0182101, 0x40082102  # ioctl
REQUEST, ANSWER = "=QIIiIQ6Q", "=QqiI"  # seccomp_notif, seccomp_notif_resp
OPENAT2, BENEATH = 437, 0x08  # a system call, the same on every architecture; RESOLVE_BENEATH
HERE, NO_FOLLOW, EMPTY_PATH = -100, 0x100, 0x1000  # AT_*
MODE = 0o1777  # seccomp refuses the rest
MAX_PATH, PAGE = 4096, 4096
TIMES_BYTES = 32  # two timespec

_libc = ctypes.CDLL(None, use_errno=True)


class Attributes:
    """Of the files in one folder, which belongs to ``owner`` where that is another user than this process's."""

    def __init__(self, folder: Path, owner: int | None) -> None:
        self._folder, self._owner = os.fsencode(folder), owner
        self._at = os.open(folder, os.O_PATH | os.O_CLOEXEC)

    def answer(self, listener: int) -> None:
        """Answer one request that waits at the listener."""
        request = bytearray(struct.calcsize(REQUEST))
        with suppress(OSError):  # who asked has ended
            fcntl.ioctl(listener, RECEIVE, request)
            number, pid, _, call, _, _, *arguments = struct.unpack(REQUEST, request)
            error = 0
            try:
                with acting_as(self._owner):
                    self._change(listener, number, pid, call, arguments)
            except OSError as failed:
                error = failed.errno or errno.EPERM
            fcntl.ioctl(listener, SEND, struct.pack(ANSWER, number, 0, -error, 0))

    def _change(self, listener: int, number: int, pid: int, call: int, arguments: list[int]) -> None:
        name = next(name for name, numbers in ASKED.items() if call == numbers[_MACHINE])
        if name in ("chmod", "fchmod"):
            arguments = [HERE, *arguments] if name == "chmod" else [arguments[0], 0, arguments[1], 0]
        folder, path, change, flags = arguments[:4]
        times = _memory(pid, change, TIMES_BYTES) if name == "utimensat" and change else None
        target = self._opened(pid, folder, path, flags if name in ("fchmodat2", "utimensat") else 0)
        try:
            fcntl.ioctl(listener, IS_VALID, struct.pack("=Q", number))  # what was read is of no later process
            named = f"/proc/self/fd/{target}"
            if name != "utimensat":
                os.chmod(named, change & MODE)  # noqa: PTH101
            elif _libc.utimensat(HERE, named.encode(), times, 0):
                raise _error()
        finally:
            os.close(target)

    def _opened(self, pid: int, folder: int, path: int, flags: int) -> int:
        """A descriptor of the file that a call is about. Raises PermissionError where it lies outside."""
        folder = ctypes.c_int32(folder & 0xFFFFFFFF).value
        named = _text(pid, path) if path else b""
        above = f"/proc/{pid}/cwd" if folder == HERE else f"/proc/{pid}/fd/{folder}"
        if path and not named and not flags & EMPTY_PATH:
            raise FileNotFoundError(errno.ENOENT, "")
        if not named:
            opened = os.open(above, os.O_PATH | os.O_CLOEXEC)
            if not self._holds(os.fsencode(os.readlink(f"/proc/self/fd/{opened}"))):  # noqa: PTH115
                os.close(opened)
                raise PermissionError(errno.EPERM, "")
            return opened
        if not named.startswith(b"/"):
            named = os.fsencode(os.readlink(above)) + b"/" + named  # noqa: PTH115
        if not self._holds(named):
            raise PermissionError(errno.EPERM, "")
        below = named[len(self._folder) :].lstrip(b"/") or b"."
        how = struct.pack("=QQQ", os.O_PATH | os.O_CLOEXEC | (os.O_NOFOLLOW if flags & NO_FOLLOW else 0), 0, BENEATH)
        opened = int(_libc.syscall(OPENAT2, self._at, below, how, len(how)))
        if opened < 0:
            raise PermissionError(errno.EPERM, "") if ctypes.get_errno() == errno.EXDEV else _error()
        return opened

    def _holds(self, path: bytes) -> bool:
        return path == self._folder or path.startswith(self._folder + b"/")


@contextmanager
def acting_as(user: int | None) -> Iterator[None]:
    """Do with another user's rights what follows: root of a container may not look into others' processes, and nobody's
    files are to be changed by root's."""
    if user is None:
        yield
        return
    os.setegid(user)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


def _text(pid: int, at: int) -> bytes:
    """The text that ends in a zero byte at this place of a process's memory."""
    found = b""
    while len(found) < MAX_PATH:
        found += _memory(pid, at + len(found), PAGE - (at + len(found)) % PAGE)
        if b"\0" in found:
            return found.partition(b"\0")[0]
    raise OSError(errno.ENAMETOOLONG, "")


def _memory(pid: int, at: int, count: int) -> bytes:
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as memory:  # noqa: PTH123
        try:
            found = os.pread(memory.fileno(), count, at)
        except (OSError, OverflowError):
            found = b""
    if len(found) < count:
        raise OSError(errno.EFAULT, "")
    return found


def _error() -> OSError:
    return OSError(ctypes.get_errno(), "")


_MACHINE = int(os.uname().machine == "aarch64") if hasattr(os, "uname") else 0
