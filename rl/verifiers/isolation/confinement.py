"""What a verifier's process gives up before it runs a line of the user's: it can take none of it back.

Everywhere: hard limits on address space and files. On Linux also new privileges, and root becomes a user of its own
without capabilities: no limit on processes binds root, and with a capability to read it would open every file by its
handle. Without bubblewrap, Landlock closes the rest, where the kernel has it. In both sandboxes seccomp refuses further
calls.
"""

import ctypes
import os
import resource
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from rl.verifiers.isolation import landlock, mounts, seccomp
from rl.verifiers.isolation.interpreter import NOTHING_CLOSED, View
from rl.verifiers.isolation.shown import Tree, shown

FILE_BYTES = 64 * 2**20  # that one file may grow to
OPEN_FILES = 256
UNPRIVILEGED = 59417  # the user that root becomes: one that nobody has, below the 65,536 that a container knows

SET_PARENT_DEATH_SIGNAL, SET_DUMPABLE, SET_NO_NEW_PRIVILEGES = 1, 4, 38  # prctl
CAPABILITIES_VERSION = 0x20080522


@dataclass(frozen=True)
class Confinement:
    """The bounds of a process."""

    sandbox: str  # bubblewrap, landlock or none: what stands around it beside its limits
    network: bool
    hidden: Sequence[str]  # files and folders with secrets
    kept: Sequence[str]  # files and folders that are seen none the less
    folder: str  # where it works, and all that it may write
    processes: int  # of its user altogether
    memory_mb: int
    view: View = NOTHING_CLOSED  # of the files, that root makes where bubblewrap does not


def is_linux() -> bool:
    return sys.platform == "linux"


def confine(to: Confinement, supervisor: socket.socket) -> None:
    """Give up what this process does not need; what it has to ask for from now on it asks of its supervisor. Raises
    OSError."""
    limit(resource.RLIMIT_CORE, 0)
    limit(resource.RLIMIT_AS, to.memory_mb * 2**20)
    limit(resource.RLIMIT_FSIZE, FILE_BYTES)
    limit(resource.RLIMIT_NOFILE, OPEN_FILES)
    if not is_linux():
        return
    limit(resource.RLIMIT_NPROC, to.processes)
    parent = os.getppid()
    if os.geteuid() == 0:
        mounts.show(to.view, to.folder)
    rules = None
    if to.sandbox == "landlock":
        trees = [one.path for one in shown(to.hidden, to.kept) if isinstance(one, Tree)]
        rules = landlock.rules(Path(to.folder), trees, to.network)
    if os.geteuid() == 0:
        _leave_root()
    die_with_parent(parent)  # another user would lose it: not before
    _prctl(SET_NO_NEW_PRIVILEGES, 1)
    if rules is not None:
        landlock.restrict(rules)
    if to.sandbox != "none" and seccomp.works():
        # bubblewrap has a network of its own: nothing outside is in reach on it
        network = to.network or to.sandbox == "bubblewrap"
        listener = seccomp.restrict(network, asks=rules is not None)
        if listener is not None:
            socket.send_fds(supervisor, [b"x"], [listener])
            os.close(listener)


def limit(which: int, amount: int) -> None:
    """Lower a limit, hard as soft."""
    hard = resource.getrlimit(which)[1]
    amount = amount if hard == resource.RLIM_INFINITY else min(amount, hard)
    with suppress(OSError, ValueError):  # macOS knows some of these only by name
        resource.setrlimit(which, (amount, amount))


def die_with_parent(parent: int) -> None:
    """End this process when its parent has ended, also where that has happened already; on Linux alone."""
    if is_linux():
        _prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)


def close_environment() -> None:
    """Keep other processes of this user from reading this one's memory and environment; on Linux alone."""
    if is_linux():
        _prctl(SET_DUMPABLE, 0)


def _leave_root() -> None:
    os.setgroups([])
    os.setresgid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
    os.setresuid(UNPRIVILEGED, UNPRIVILEGED, UNPRIVILEGED)
    header = (ctypes.c_uint32 * 2)(CAPABILITIES_VERSION, 0)
    # those that programs would inherit stay otherwise; capabilities(7)
    if _libc.capset(header, (ctypes.c_uint32 * 6)()):
        raise OSError(ctypes.get_errno(), "capset")
    _prctl(SET_DUMPABLE, 1)  # so that its supervisor sees what it holds, in a container too


def _prctl(option: int, *arguments: int) -> None:
    given = [ctypes.c_ulong(argument) for argument in (*arguments, 0, 0, 0, 0)[:4]]
    if _libc.prctl(option, *given):
        raise OSError(ctypes.get_errno(), f"prctl {option}")


_libc = ctypes.CDLL(None, use_errno=True)
