"""How long calls take, and when workers gave a sign of life: what tells a long call from one that has stopped."""

import threading
from collections import deque
from collections.abc import Collection

from distributed.scheduler import heartbeat_interval

from infra.cluster.placement import Offer
from infra.dispatch.lease_config import PATIENCE

RECENT = 16  # calls that this is taken from
UNMEASURED_SECONDS = 20.0  # that a call should take where nothing was measured yet
POLL_SECONDS = 0.25  # how old an answer of the scheduler may be: half the time between two heartbeats of a worker,
LARGE_SECONDS = 2.0  # from which on it is all of it, as the answer of so large a cluster takes long to read,
LONGEST_POLL_SECONDS = 8.0  # and at most
GAP_SECONDS = 5.0  # between two polls, or GAP polls of a large cluster, after which nothing is known of the time before
GAP = 1.5
KEPT_SECONDS = 3600.0  # that a sign of life is remembered of a worker that is gone


def late_after(longest: float | None, least: float, patience: float = PATIENCE) -> float:
    """Seconds after which a call is late: `patience` times the longest of late, None where none was measured; at least
    `least`."""
    return max(least, patience * (UNMEASURED_SECONDS if longest is None else longest))


def poll_seconds(workers: int) -> float:
    """How old an answer in which the scheduler describes so many workers may be."""
    heartbeat = heartbeat_interval(workers)
    return min(max(POLL_SECONDS, heartbeat if heartbeat >= LARGE_SECONDS else heartbeat / 2), LONGEST_POLL_SECONDS)


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


class Signs:
    """When each worker gave its last sign of life, by this process's clock: the scheduler's need not agree with it."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, float]] = {}  # by address: what the scheduler says, and since when
        self._polled = -float("inf")
        self._lock = threading.Lock()

    def poll(self, offers: Collection[Offer], now: float) -> None:
        """Take in what the scheduler says of these workers at `now`."""
        with self._lock:
            if now - self._polled > max(GAP_SECONDS, GAP * poll_seconds(len(offers))):
                self._seen.clear()
            self._polled = now
            for offer in offers:
                seen, _ = self._seen.get(offer.address, (None, now))
                if seen != offer.seen:
                    self._seen[offer.address] = (offer.seen, now)
            there = {offer.address for offer in offers}
            for gone in [at for at, (_, since) in self._seen.items() if now - since > KEPT_SECONDS and at not in there]:
                del self._seen[gone]

    def quiet(self, address: str, now: float) -> float:
        """Seconds since the last sign of life; 0 of a worker that was never polled."""
        with self._lock:
            return now - self._seen[address][1] if address in self._seen else 0.0
