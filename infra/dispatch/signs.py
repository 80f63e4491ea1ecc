"""When workers gave a sign of life, and how often the scheduler is asked for that."""

import threading
from collections.abc import Collection

from distributed.scheduler import heartbeat_interval

from infra.cluster.placement import Offer

POLL_SECONDS = 0.25  # how old an answer of the scheduler may be: half the time between two heartbeats of a worker,
LARGE_SECONDS = 2.0  # from which on it is all of it, as the answer of so large a cluster takes long to read,
LONGEST_POLL_SECONDS = 4.0  # and at most
GAP_SECONDS = 5.0  # between two polls, or GAP polls of a large cluster, after which nothing is known of the time before
GAP = 1.5
KEPT_SECONDS = 3600.0  # that a sign of life is remembered of a worker that is gone


def poll_seconds(workers: int) -> float:
    """How old an answer in which the scheduler describes so many workers may be."""
    heartbeat = heartbeat_interval(workers)
    return min(max(POLL_SECONDS, heartbeat if heartbeat >= LARGE_SECONDS else heartbeat / 2), LONGEST_POLL_SECONDS)


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
