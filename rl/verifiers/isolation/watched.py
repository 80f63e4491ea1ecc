"""Bounds on what the processes below a supervisor hold together, measured again and again."""

import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from rl.verifiers.isolation import family, holdings
from rl.verifiers.isolation.attributes import acting_as

PROCESSES = 64
# That the user may start elsewhere later: the kernel counts these too. Thousands that multiply leave their supervisor
# no time on two cores.
OTHERS = 256
FORK_BYTES = 8 * 2**20  # that a process writes to of what it had in common with the one that it was forked from
FOLDER_BYTES = 256 * 2**20
FOLDER_FILES = 10_000
AGAIN_SECONDS = 0.02  # where it is too much: a process that is just starting another is seen twice
UNSEEN_SECONDS = 1.0  # that a process may be closed, as one is that starts, and open files may be in a socket


class TooMuchError(Exception):
    """The processes below a supervisor hold more than they may."""


@dataclass(frozen=True)
class Bounds:
    """What the processes may hold together."""

    memory_mb: int
    forks: int  # of one process, each with a socket, beside the rest

    @property
    def memory_bytes(self) -> int:
        """Without the sockets of the forks."""
        return self.memory_mb * 2**20 + self.forks * FORK_BYTES

    @property
    def processes(self) -> int:
        return PROCESSES + self.forks


class Watched:
    """The processes below a supervisor, and how much they may hold."""

    def __init__(self, child: int, folder: Path, bubblewrapped: bool, owner: int | None, bounds: Bounds) -> None:
        self.child, self.bubblewrapped = child, bubblewrapped
        self._folder, self._owner, self._bounds = folder, owner, bounds
        self._shared = holdings.shared_on_machine() if sys.platform == "linux" else 0
        self._unseen: dict[object, float] = {}  # since when, by the clock
        self._last: tuple[object, float] = (None, 1.0)  # what had run when it was measured, and the share

    def measure(self) -> float:
        """The largest share of a bound that is used, 0 to 1. Raises TooMuchError."""
        ran, last = family.activity(self._below()) if sys.platform == "linux" else None, self._last
        if ran is not None and ran == last[0] and last[1] < 0.5:
            return last[1]  # none of them has run since, and so none holds more
        share = self._measured()
        self._last = ran, share
        return share

    def _measured(self) -> float:
        share = self._once()
        if share > 1:
            time.sleep(AGAIN_SECONDS)
            share = self._once()
        if share > 1:
            raise TooMuchError(self._said)
        return share

    def _once(self) -> float:
        size, files = holdings.walked(self._folder)
        shares = {f"wrote more than {FOLDER_BYTES // 2**20} MB or {FOLDER_FILES} files": files / FOLDER_FILES}
        if sys.platform == "linux":
            closed, held = self._held()
            size += held.disk_bytes
            memory = held.memory_bytes - min(len(held.sockets), self._bounds.forks) * holdings.SOCKET_BYTES
            if held.unsure:
                memory = max(memory, holdings.shared_on_machine() - self._shared)
            bounds = self._bounds
            shares[f"held more than {bounds.memory_bytes // 2**20} MB of memory"] = memory / bounds.memory_bytes
            shares[f"ran more than {bounds.processes} processes"] = held.tasks / bounds.processes
            unseen = self._unseen_for([*closed, *held.carrying])
            said = "closed its processes to its supervisor" if closed else "kept open files in sockets"
            shares[said] = unseen / UNSEEN_SECONDS
        written = next(iter(shares))
        shares[written] = max(shares[written], size / FOLDER_BYTES)
        self._said = max(shares, key=shares.__getitem__)
        return shares[self._said]

    def _held(self) -> tuple[list[int], holdings.Held]:
        """The processes that cannot be looked into, and what the others hold."""
        below = self._below()
        found = holdings.held(below, self.bubblewrapped)
        if not found[0] or self._owner is None:
            return found
        with acting_as(self._owner):
            return holdings.held(below, self.bubblewrapped)

    def _below(self) -> set[int]:
        below = set(family.below(os.getpid()))
        if self.bubblewrapped:  # not bubblewrap's own two
            below -= {self.child, *family.children(self.child)}
        return below

    def _unseen_for(self, now_unseen: list[object]) -> float:
        """For how many seconds one of these has been unseen without a break; at least what makes the next look soon."""
        now = time.monotonic()
        self._unseen = {one: self._unseen.get(one, now) for one in now_unseen}
        longest = max((now - since for since in self._unseen.values()), default=0.0)
        return max(longest, UNSEEN_SECONDS / 2) if now_unseen else 0.0
