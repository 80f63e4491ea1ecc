"""How long calls take: what tells a long call from one that has stopped."""

import threading
from collections import deque
from collections.abc import Collection

from infra.dispatch.lease_config import PATIENCE

RECENT = 16  # calls that this is taken from
UNMEASURED_SECONDS = 20.0  # that a call should take where nothing was measured yet


def late_after(longest: float | None, least: float, patience: float = PATIENCE) -> float:
    """Seconds after which a call is late: `patience` times the longest of late, None where none was measured; at least
    `least`."""
    return max(least, patience * (UNMEASURED_SECONDS if longest is None else longest))


class Durations:
    """Seconds of the calls that came back lately, by their kind of work. Safe to share by threads."""

    def __init__(self) -> None:
        self.patience = PATIENCE  # see `late_after`
        self._took: dict[str, deque[float]] = {}
        self._longest: dict[str, float] = {}
        self._longest_of_all: float | None = None
        self._lock = threading.Lock()

    def add(self, work: str, seconds: float) -> None:
        """A call that did `work` came back."""
        with self._lock:
            took = self._took.setdefault(work, deque(maxlen=RECENT))
            took.append(seconds)
            self._longest[work] = max(took)
            self._longest_of_all = None

    def forget(self, work: str) -> None:
        """Forget the calls that did `work` so far."""
        with self._lock:
            del self._took[work], self._longest[work]
            self._longest_of_all = None

    def longest(self, work: str | None = None) -> float | None:
        """Seconds of the longest of the last calls that did `work`, or of all; None where there was none."""
        with self._lock:
            if work is not None:
                return self._longest.get(work)
            if self._longest_of_all is None:
                self._longest_of_all = max(self._longest.values(), default=None)
            return self._longest_of_all

    def keep(self, works: Collection[str]) -> None:
        """Forget all other work."""
        with self._lock:
            for gone in self._took.keys() - works:
                del self._took[gone], self._longest[gone]
                self._longest_of_all = None

    def limit(self, work: str, least: float) -> float:
        """Seconds after which a call that does `work` is late; at least `least`."""
        return late_after(self.longest(work), least, self.patience)
