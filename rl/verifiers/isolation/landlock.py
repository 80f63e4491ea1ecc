"""Landlock (Linux 5.13 on, no privilege needed): what a process and its descendants may open, reach and signal.

Beside the files it keeps a process from looking into others (`/proc/<pid>/environ`, `mem`), as those are not under the
same rules. ABI 4 adds TCP, 6 signals and abstract sockets. See linux/Documentation/userspace-api/landlock.rst.
"""

import ctypes
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

CREATE, ADD_RULE, RESTRICT_SELF = 444, 445, 446  # system calls, the same on every architecture
VERSION = 1  # flag of CREATE
PATH_BENEATH = 1
READ = 0b1101  # execute, read a file, list a folder
ON_FILES = 0b111 | 1 << 14 | 1 << 15  # those of the rights that a file can have: the others are a folder's
WRITE_FILE = 1 << 1
RIGHTS = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}  # that an ABI knows, and later ones
TCP = 0b11  # bind, connect
SCOPES = 0b11  # abstract sockets, signals
DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

_libc = ctypes.CDLL(None, use_errno=True)


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("parent", ctypes.c_int32))


def abi() -> int:
    """The version of Landlock that this kernel has, 0 for none."""
    return max(0, int(_libc.syscall(CREATE, None, 0, VERSION)))


def rules(writable: Path, readable: Sequence[str], network: bool) -> int:
    """A descriptor of rules: read beneath ``readable`` alone, write beneath ``writable`` alone, and TCP only with
    ``network``. Raises OSError."""
    version = abi()
    handled = next(rights for least, rights in reversed(RIGHTS.items()) if version >= least)
    wanted = _Ruleset(handled, 0 if network or version < 4 else TCP, SCOPES if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    made = _called(CREATE, ctypes.byref(wanted), size, 0)
    for path in readable:
        _allow(made, Path(path), READ)
    _allow(made, writable, handled)
    for device in DEVICES:
        _allow(made, Path(device), READ | WRITE_FILE)
    return made


def restrict(made: int) -> None:
    """Put this process under the rules, for good; it has to have given up new privileges. Raises OSError."""
    _called(RESTRICT_SELF, made, 0)
    os.close(made)


def _allow(made: int, path: Path, rights: int) -> None:
    try:
        opened = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # what this process cannot open, or is gone, needs no rule
    try:
        if not stat.S_ISDIR(os.fstat(opened).st_mode):
            rights &= ON_FILES
        with suppress(OSError):  # a link
            _called(ADD_RULE, made, PATH_BENEATH, ctypes.byref(_Beneath(rights, opened)), 0)
    finally:
        os.close(opened)


def _called(*arguments: object) -> int:
    result = int(_libc.syscall(*arguments))
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return result
