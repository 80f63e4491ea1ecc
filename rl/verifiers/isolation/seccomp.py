"""Seccomp (Linux, no privilege needed): which sockets a process and its descendants may make, and which calls it is
refused (`rl.verifiers.isolation.syscalls`).

Neither read-only files nor Landlock's rules keep a process from connecting to a Unix socket that its user may write to:
a session bus, docker, an ssh-agent. Pairs stay, of streams: one of datagrams could be sent to any path.
See linux/Documentation/userspace-api/seccomp_filter.rst.
"""

import ctypes
import errno
import os
import sys
from collections.abc import Sequence

from rl.verifiers.isolation.syscalls import (
    ABSENT,
    CLONE,
    NAMESPACES,
    PRCTL,
    REFUSED,
    SET_DUMPABLE,
    TIME_NAMESPACE,
    UNSHARE,
)

SET_SECCOMP, MODE_FILTER = 22, 2  # prctl
LOAD, EQUAL, AT_LEAST, ANY, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06  # what an instruction does
NUMBER, ARCHITECTURE, FIRST, SECOND = 0, 4, 16, 24  # where a call, and the lower half of its arguments, is read
ALLOW, FAIL, KILL = 0x7FFF0000, 0x00050000, 0x80000000
MACHINES = ("x86_64", "aarch64")  # in the order of all numbers
ARCHITECTURES, SOCKET, SOCKETPAIR = (0xC000003E, 0xC00000B7), (41, 198), (53, 199)
OTHER_NUMBERS = 0x40000000  # x86_64 has its calls a second time from here on, for x32
NETWORK = (2, 10, 16)  # families: AF_INET, AF_INET6, AF_NETLINK
STREAM, IN_ORDER, TYPE = 1, 5, 0xF  # SOCK_STREAM, SOCK_SEQPACKET; the rest of a type are flags

Instruction = tuple[int, int, int, int]  # code, how many to skip if true, if not, operand

_libc = ctypes.CDLL(None, use_errno=True)


class _Code(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint16), ("true", ctypes.c_uint8), ("false", ctypes.c_uint8), ("k", ctypes.c_uint32))


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_uint16), ("codes", ctypes.POINTER(_Code)))


def works() -> bool:
    """Whether this kernel has filters, and its numbers of calls are known here."""
    if sys.platform != "linux" or os.uname().machine not in MACHINES or sys.maxsize < 2**32:
        return False
    _set(None)  # never succeeds
    return ctypes.get_errno() == errno.EFAULT


def restrict(network: bool) -> None:
    """Put this process under the filter, for good; it has to have given up new privileges. ``network`` leaves internet
    sockets. Raises OSError."""
    instructions = _filter(os.uname().machine, network)
    codes = (_Code * len(instructions))(*[_Code(*one) for one in instructions])
    if _set(_Program(len(instructions), codes)):
        raise OSError(ctypes.get_errno(), "seccomp")


def _filter(machine: str, network: bool) -> list[Instruction]:
    at = MACHINES.index(machine)
    denied, refused, absent, unreachable = (
        _return(FAIL | number) for number in (errno.EACCES, errno.EPERM, errno.ENOSYS, errno.ENETUNREACH)
    )
    kinds = [one for kind in (STREAM, IN_ORDER) for one in _when(kind, [_return(ALLOW)])]
    families = [one for family in NETWORK for one in _when(family, [_return(ALLOW) if network else unreachable])]
    calls = [(call[at], refused) for call in REFUSED.values()] + [(call[at], absent) for call in ABSENT.values()]
    hides = [*_when(SET_DUMPABLE, [(LOAD, 0, 0, SECOND), *_when(0, [refused]), _return(ALLOW)]), _return(ALLOW)]
    return [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, ARCHITECTURES[at]),
        _return(KILL),
        (LOAD, 0, 0, NUMBER),
        (AT_LEAST, 0, 1, OTHER_NUMBERS),
        denied,
        *[one for number, verdict in calls for one in _when(number, [verdict])],
        *_when(UNSHARE[at], [(LOAD, 0, 0, FIRST), (ANY, 0, 1, NAMESPACES), refused, _return(ALLOW)]),
        *_when(CLONE[at], [(LOAD, 0, 0, FIRST), (ANY, 0, 1, NAMESPACES & ~TIME_NAMESPACE), refused, _return(ALLOW)]),
        *_when(PRCTL[at], [(LOAD, 0, 0, FIRST), *hides]),
        *_when(SOCKETPAIR[at], [(LOAD, 0, 0, SECOND), (AND, 0, 0, TYPE), *kinds, denied]),
        *_when(SOCKET[at], [(LOAD, 0, 0, FIRST), *families, denied]),
        _return(ALLOW),
    ]


def _when(value: int, then: Sequence[Instruction]) -> list[Instruction]:
    """``then``, which ends in a return, where ``value`` was loaded."""
    return [(EQUAL, 0, len(then), value), *then]


def _return(verdict: int) -> Instruction:
    return (RETURN, 0, 0, verdict)


def _set(program: _Program | None) -> int:
    at = ctypes.byref(program) if program is not None else None
    none = ctypes.c_ulong(0)
    return int(_libc.prctl(SET_SECCOMP, ctypes.c_ulong(MODE_FILTER), at, none, none))
