"""How long calls take, and when their workers were heard of last: what tells a long call from one that has stopped."""

import threading
from collections import deque
from collections.abc import Collection

from infra.cluster.placement import Offer

LATE_RATIO = 3  # times the longest of late is late
RECENT = 16  # calls that this is taken from
UNMEASURED_SECONDS = 60.0  # late where nothing was measured yet
GAP_SECONDS = 5.0  # between two looks, after which nothing is known of the time before


class Durations:
    """Seconds of the calls that came back lately, by what they did. Safe to share by threads."""

    def __init__(self) -> None:
        self._took: dict[str, deque[float]] = {}
        self._lock = threading.Lock()

    def add(self, work: str, seconds: float) -> None:
        """Such a call came back."""
        with self._lock:
            self._took.setdefault(work, deque(maxlen=RECENT)).append(seconds)

    def longest(self, work: str) -> float | None:
        """Of the last calls that did this, None where there was none."""
        with self._lock:
            took = self._took.get(work)
            return max(took) if took else None

    def limit(self, work: str, least: float) -> float:
        """Seconds after which such a call is late; at least so many."""
        longest = self.longest(work)
        return max(least, UNMEASURED_SECONDS if longest is None else LATE_RATIO * longest)


class Signs:
    """Since when each worker gave no sign of life, by one clock: the scheduler's need not agree with it."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}  # by address: what the scheduler says, and since when
        self._polled = -float("inf")
        self._lock = threading.Lock()

    def poll(self, offers: Collection[Offer], now: float) -> None:
        """What the scheduler has heard."""
        with self._lock:
            if now - self._polled > GAP_SECONDS:
                self._seen.clear()
            self._polled = now
            for offer in offers:
                seen, _ = self._seen.get(offer.address, (None, now))
                if seen != offer.seen:
                    self._seen[offer.address] = (offer.seen, now)

    def quiet(self, address: str, now: float) -> float:
        """Seconds since the last sign; 0 of a worker that nobody has looked at."""
        with self._lock:
            return now - self._seen[address][1] if address in self._seen else 0.0
