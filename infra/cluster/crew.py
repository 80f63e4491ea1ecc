"""The workers that may run one call, as the scheduler said last."""

import time

from distributed.scheduler import heartbeat_interval

from infra.cluster.calls import Calls
from infra.cluster.durations import Signs
from infra.cluster.placement import Offer

POLL_SECONDS = 0.25  # how old the answer may be when leases are handed out
MISSED = 4  # heartbeats, after which a worker is quiet; in a small cluster 2 s


class Crew:
    """The capable workers of one call; not safe to use from several threads."""

    def __init__(self, calls: Calls, call: str, patience: float) -> None:
        """`patience`: seconds without a capable worker."""
        self.capable: list[Offer] = []
        self._calls = calls
        self._call = call
        self._patience = patience
        self._signs = Signs()
        self.begin()

    def begin(self) -> None:
        """Forget the last poll, and since when no worker was capable."""
        self._polled = self._alone_since = -float("inf")
        self._quiet_after = float("inf")

    def changed(self) -> None:
        """Have the next poll be at once: a worker has gone, or is excluded now."""
        self._polled = -float("inf")

    @property
    def is_old(self) -> bool:
        """Whether it is time to poll again."""
        return time.monotonic() - self._polled > POLL_SECONDS

    @property
    def quiet(self) -> set[str]:
        """The addresses of capable workers that give no sign of life: stopped, asleep, or cut off."""
        now = self._polled
        return {each.address for each in self.capable if self._signs.quiet(each.address, now) > self._quiet_after}

    def poll(self) -> set[str]:
        """The addresses of all workers present, leaving ones too. Raises PlacementError when none was capable for
        `patience`."""
        everyone, tags = self._calls.offers(leaving=True), self._calls.placement.tags(self._call)
        excluded = self._calls.exclusions.excluded
        staying = [offer for offer in everyone if not offer.leaves]
        self.capable = [offer for offer in staying if offer.satisfies(tags) and not excluded(self._call, offer)]
        self._polled = time.monotonic()
        self._signs.poll(everyone, self._polled)
        self._quiet_after = MISSED * heartbeat_interval(len(everyone))
        if self.capable or self._alone_since < 0:
            self._alone_since = self._polled
            self._calls.lacking.pop(self._call, None)
        elif self._call not in self._calls.lacking:
            self._calls.lacking[self._call] = self._alone_since
        elif self._polled - self._alone_since > self._patience:
            raise self._calls.unsatisfied(self._call)
        return {offer.address for offer in everyone}
