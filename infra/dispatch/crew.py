"""The workers that may run one call, as the scheduler said last."""

import time

from distributed.scheduler import heartbeat_interval

from infra.cluster.placement import Offer
from infra.dispatch.calls import Calls
from infra.dispatch.signs import POLL_SECONDS, Signs, poll_seconds

MISSED = 4  # heartbeats, after which a worker is quiet; in a small cluster 2 s


class Crew:
    """The capable workers of one call; not safe to use from several threads."""

    def __init__(self, calls: Calls, call: str, patience: float) -> None:
        """`patience`: seconds without a capable worker."""
        self.capable: dict[str, Offer] = {}  # by address
        self.quiet: frozenset[str] = frozenset()  # of these, by address: stopped, asleep, or cut off
        self.left: set[str] = set()  # addresses of those that were asked to leave, as far as that was seen
        self._calls = calls
        self._call = call
        self._patience = patience
        self._signs = Signs()
        self._polled = self._alone_since = -float("inf")
        self._interval = POLL_SECONDS

    def begin(self) -> None:
        """Forget since when no worker was capable."""
        self._alone_since = -float("inf")

    def changed(self) -> None:
        """Have the next poll be at once: a worker has gone, or is excluded now."""
        self._polled = -float("inf")

    @property
    def is_old(self) -> bool:
        """Whether it is time to poll again."""
        return time.monotonic() - self._polled > self._interval

    def poll(self) -> set[str]:
        """The addresses of all workers present, leaving ones too. Raises PlacementError when none was capable for
        `patience`."""
        lately = self._interval if self._polled > 0 else 0.0  # another call's crew may have asked
        everyone = self._calls.offers(leaving=True, lately=lately)
        tags = self._calls.placement.tags(self._call)
        excluded = self._calls.exclusions.excluded
        staying = [offer for offer in everyone if not offer.leaves]
        self.left.update(offer.address for offer in everyone if offer.leaves)
        able = [offer for offer in staying if offer.satisfies(tags) and not excluded(self._call, offer)]
        self.capable = {offer.address: offer for offer in able}
        self._polled = now = time.monotonic()
        self._signs.poll(everyone, now)
        self._interval = poll_seconds(len(everyone))
        late = MISSED * heartbeat_interval(len(everyone))
        self.quiet = frozenset(at for at in self.capable if self._signs.quiet(at, now) > late)
        if self.capable or self._alone_since < 0:
            self._alone_since = self._polled
            self._calls.lacking.pop(self._call, None)
        elif self._call not in self._calls.lacking:
            self._calls.lacking[self._call] = self._alone_since
        elif self._polled - self._alone_since > self._patience:
            raise self._calls.unsatisfied(self._call)
        return {offer.address for offer in everyone}
