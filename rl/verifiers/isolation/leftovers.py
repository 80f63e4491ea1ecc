"""Removes what supervisors that were killed have left: their folders, and processes in sessions of their own."""

import fcntl
import os
import shutil
import signal
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from rl.verifiers.isolation import family

PREFIX = "rlvf-verifier-"  # of folders, with the supervisor's id behind it
FOLDER = "own"  # in these: what a verifier may write
MARK = "TMPDIR"  # in the environment of all that is below a supervisor: that folder
SUPERVISOR = b"rl.verifiers.isolation.supervisor"  # in its command line
YOUNG_SECONDS = 60.0  # in which a folder may not have its lock yet
END_SECONDS = 30.0


def sweep(owner: int, supervisor: int | None = None) -> None:
    """Remove the folders of supervisors that have ended, and end the processes below them; of one supervisor where its
    id is given. What belongs to other users, or is no folder, stays: anybody may write to the temporary folder."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*" if supervisor is None else f"{PREFIX}{supervisor}-*"):
        with suppress(OSError):
            opened = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                found = os.fstat(opened)
                is_old = supervisor is not None or found.st_mtime < time.time() - YOUNG_SECONDS
                if found.st_uid == owner and is_old:
                    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    if sys.platform == "linux":
                        with suppress(FileNotFoundError):  # killed before it made that
                            own = os.stat(FOLDER, dir_fd=opened, follow_symlinks=False)
                            _end(str(left.resolve() / FOLDER), own.st_uid)
                    shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(opened)


def _end(folder: str, owner: int) -> None:
    deadline = time.monotonic() + END_SECONDS
    while time.monotonic() < deadline:
        # of a user that only verifiers have, all that no supervisor is above; else what bears the mark
        found = _lost(owner) & _lost(owner) if owner != os.geteuid() else _marked(folder, owner)
        if not found:
            return
        for number in (signal.SIGSTOP, signal.SIGKILL):  # all are stopped first: they may fork faster
            for pid in found:
                with suppress(OSError):
                    os.kill(pid, number)
        time.sleep(0.002)


def _marked(folder: str, owner: int) -> set[int]:
    """The user's processes whose environment can be read and has the mark."""
    found, mark = set(), f"{MARK}={folder}".encode()
    for pid in (child for children in family.running().values() for child in children):
        with suppress(OSError):
            if _user(pid) == owner and mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                found.add(pid)
    return found


def _lost(owner: int) -> set[int]:
    """The user's processes that are below no supervisor for sure: every process above them is known."""
    parents = {child: parent for parent, children in family.running().items() for child in children}
    found = set()
    for pid in parents:
        with suppress(OSError):
            if _user(pid) != owner:
                continue
            above = parents[pid]
            while above > 1 and not _supervises(above, owner):
                above = parents.get(above, -1)
            if above in (0, 1) and not (above and _supervises(above, owner)):
                found.add(pid)
    return found


def _supervises(pid: int, owner: int) -> bool:
    return _user(pid) != owner and SUPERVISOR in Path(f"/proc/{pid}/cmdline").read_bytes()


def _user(pid: int) -> int:
    return int(family.status(pid)["Uid"].split()[0])
