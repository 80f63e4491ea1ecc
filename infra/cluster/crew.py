"""The workers that may run one call, as of the last look at who is there."""

import time

from infra.cluster.calls import Calls
from infra.cluster.placement import Offer

POLL_SECONDS = 0.25  # how old a look may be when leases are handed out


class Crew:
    """Of the leases of one call; not safe to use from several threads."""

    def __init__(self, calls: Calls, call: str, patience: float) -> None:
        """`patience`: seconds without anybody."""
        self.capable: list[Offer] = []
        self._calls = calls
        self._call = call
        self._patience = patience
        self.begin()

    def begin(self) -> None:
        """Nobody has looked for a while."""
        self._polled = self._alone_since = -float("inf")

    def changed(self) -> None:
        """Somebody has gone, or gets no more leases."""
        self._polled = -float("inf")

    @property
    def is_old(self) -> bool:
        """Whether it is time to look again."""
        return time.monotonic() - self._polled > POLL_SECONDS

    def poll(self) -> set[str]:
        """The addresses of all workers that are there. Raises PlacementError when nobody was capable for too long."""
        everyone, tags = self._calls.offers(), self._calls.placement.tags(self._call)
        excluded = self._calls.exclusions.excluded
        self.capable = [offer for offer in everyone if offer.satisfies(tags) and not excluded(self._call, offer)]
        self._polled = time.monotonic()
        if self.capable or self._alone_since < 0:
            self._alone_since = self._polled
            self._calls.lacking.pop(self._call, None)
        elif self._call not in self._calls.lacking:
            self._calls.lacking[self._call] = self._alone_since
        elif self._polled - self._alone_since > self._patience:
            raise self._calls.unsatisfied(self._call)
        return {offer.address for offer in everyone}
