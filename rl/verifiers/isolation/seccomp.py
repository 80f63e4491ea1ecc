"""Seccomp (Linux, no privilege needed): which sockets a process and its descendants may make, which calls it is
refused, and which are asked of its supervisor (`rl.verifiers.isolation.syscalls`).

Neither read-only files nor Landlock's rules keep a process from connecting to a Unix socket that its user may write to:
a session bus, docker, an ssh-agent. Pairs stay, of streams: one of datagrams could be sent to any path.
See linux/Documentation/userspace-api/seccomp_filter.rst.
"""

import ctypes
import errno
import os
import sys
from collections.abc import Sequence

from rl.verifiers.isolation import syscalls

SET_SECCOMP, MODE_FILTER = 22, 2  # prctl
SECCOMP, SET_FILTER, NEW_LISTENER = (317, 277), 1, 8  # the system call, what it does, and with which flag
LOAD, EQUAL, AT_LEAST, ANY, AND, RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06  # what an instruction does
NUMBER, ARCHITECTURE = 0, 4  # where a call is read,
FIRST, SECOND, THIRD, FOURTH = ARGUMENTS = (16, 24, 32, 40)  # and the lower half of its arguments
HIGHER = 4  # from a lower half to the higher one
ALLOW, ASK, FAIL, KILL = ((RETURN, 0, 0, verdict) for verdict in (0x7FFF0000, 0x7FC00000, 0x00050000, 0x80000000))
MACHINES = ("x86_64", "aarch64")  # in the order of all numbers
ARCHITECTURES, SOCKET, SOCKETPAIR = (0xC000003E, 0xC00000B7), (41, 198), (53, 199)
OTHER_NUMBERS = 0x40000000  # x86_64 has its calls a second time from here on, for x32
NETWORK = (2, 10, 16)  # families: AF_INET, AF_INET6, AF_NETLINK
STREAM, IN_ORDER, TYPE = 1, 5, 0xF  # SOCK_STREAM, SOCK_SEQPACKET; the rest of a type are flags

Instruction = tuple[int, int, int, int]  # code, how many to skip if true, if not, operand
Syscall = tuple[int, list[Instruction]]  # its number, and what follows for it, which ends in a return

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


def restrict(network: bool, asks: bool) -> int | None:
    """Put this process under the filter, for good; it has to have given up new privileges. ``network`` leaves internet
    sockets. ``asks`` closes what Landlock does not govern, and gives a descriptor: who has it is asked for the calls of
    `syscalls.ASKED`. Raises OSError."""
    instructions = _filter(MACHINES.index(os.uname().machine), network, asks)
    codes = (_Code * len(instructions))(*[_Code(*one) for one in instructions])
    program = _Program(len(instructions), codes)
    if not asks:
        made = _set(program)
    else:
        at = SECCOMP[MACHINES.index(os.uname().machine)]
        made = int(_libc.syscall(at, SET_FILTER, NEW_LISTENER, ctypes.byref(program)))
    if made < 0:
        raise OSError(ctypes.get_errno(), "seccomp")
    return made if asks else None


def _filter(at: int, network: bool, asks: bool) -> list[Instruction]:
    calls = [*(_ungoverned(at) if asks else []), *_everywhere(at, ALLOW if not asks else ASK)]
    calls += _sockets(at, network)
    return [
        (LOAD, 0, 0, ARCHITECTURE),
        (EQUAL, 1, 0, ARCHITECTURES[at]),
        KILL,
        (LOAD, 0, 0, NUMBER),
        (AT_LEAST, 0, 1, OTHER_NUMBERS),
        _failed(errno.EACCES),
        *[one for number, then in calls if number != syscalls.NONE for one in _when(number, then)],
        ALLOW,
    ]


def _everywhere(at: int, mode: Instruction) -> list[Syscall]:
    """The calls that are refused in every sandbox; ``mode`` is the verdict on a change of rights that is not."""
    refused = _failed(errno.EPERM)
    calls = [(call[at], [refused]) for call in syscalls.REFUSED.values()]
    calls += [(call[at], [_failed(errno.ENOSYS)]) for call in syscalls.ABSENT.values()]
    for call, flags in ((syscalls.UNSHARE, syscalls.NAMESPACES), (syscalls.CLONE, syscalls.CLONE_NAMESPACES)):
        calls.append((call[at], [*_any(FIRST, flags, [refused]), ALLOW]))
    hidden = _when(syscalls.SET_DUMPABLE, [*_equals(SECOND, 0, [refused]), ALLOW])
    calls.append((syscalls.PRCTL[at], [(LOAD, 0, 0, FIRST), *hidden, ALLOW]))
    for call, argument in syscalls.CHANGES_MODE.values():
        calls.append((call[at], [*_any(ARGUMENTS[argument], syscalls.SET_ID, [refused]), mode]))
    for call, argument in syscalls.MAKES_FILE.values():
        calls.append((call[at], [*_any(ARGUMENTS[argument], syscalls.SET_ID, [refused]), ALLOW]))
    for call, argument in syscalls.OPENS.values():
        with_id = [*_any(ARGUMENTS[argument], syscalls.SET_ID, [refused]), ALLOW]
        calls.append((call[at], [*_any(ARGUMENTS[argument - 1], syscalls.MAKING, with_id), ALLOW]))
    return calls


def _ungoverned(at: int) -> list[Syscall]:
    """What Landlock does not govern, but for the mode of a file."""
    refused, unsupported = _failed(errno.EPERM), _failed(errno.EOPNOTSUPP)
    calls = [(syscalls.ASKED["utimensat"][at], [ASK])]
    for those, verdict in (
        (syscalls.OWNERS, refused),
        (syscalls.OLD, _failed(errno.ENOSYS)),
        (syscalls.UNSUPPORTED, unsupported),
    ):
        calls += [(call[at], [verdict]) for call in those.values()]
    flags = [one for request in syscalls.SETS_FLAGS for one in _when(request, [unsupported])]
    calls.append((syscalls.IOCTL[at], [(LOAD, 0, 0, SECOND), *flags, ALLOW]))
    calls += [(call[at], [*_equals(FIRST, 0, [ALLOW]), refused]) for call in syscalls.OF_PROCESS.values()]
    for call, user in syscalls.OF_PROCESSES.values():
        calls.append((call[at], [*_equals(FIRST, user, [refused]), *_equals(SECOND, 0, [ALLOW]), refused]))
    reads = _equals(THIRD, 0, _equals(THIRD + HIGHER, 0, [ALLOW]))
    calls.append((syscalls.PRLIMIT[at], [*_equals(FIRST, 0, [ALLOW]), *reads, refused]))
    return calls


def _sockets(at: int, network: bool) -> list[Syscall]:
    denied = _failed(errno.EACCES)
    kinds = [one for kind in (STREAM, IN_ORDER) for one in _when(kind, [ALLOW])]
    on_network = ALLOW if network else _failed(errno.ENETUNREACH)
    families = [one for family in NETWORK for one in _when(family, [on_network])]
    return [
        (SOCKETPAIR[at], [(LOAD, 0, 0, SECOND), (AND, 0, 0, TYPE), *kinds, denied]),
        (SOCKET[at], [(LOAD, 0, 0, FIRST), *families, denied]),
    ]


def _when(value: int, then: Sequence[Instruction]) -> list[Instruction]:
    """``then`` where ``value`` was loaded."""
    return [(EQUAL, 0, len(then), value), *then]


def _equals(argument: int, value: int, then: Sequence[Instruction]) -> list[Instruction]:
    """``then`` where an argument has this value."""
    return [(LOAD, 0, 0, argument), *_when(value, then)]


def _any(argument: int, bits: int, then: Sequence[Instruction]) -> list[Instruction]:
    """``then`` where an argument has one of these bits."""
    return [(LOAD, 0, 0, argument), (ANY, 0, len(then), bits), *then]


def _failed(number: int) -> Instruction:
    return (RETURN, 0, 0, FAIL[3] | number)


def _set(program: _Program | None) -> int:
    at = ctypes.byref(program) if program is not None else None
    none = ctypes.c_ulong(0)
    return int(_libc.prctl(SET_SECCOMP, ctypes.c_ulong(MODE_FILTER), at, none, none))
