"""Lines that say which workers come and go."""

import threading
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet

from infra.cluster.placement import Offer

NAMED = 4  # workers in a line


class Presence:
    """Says how the scheduler's answers differ, one from the next. Safe to use from several threads at once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._asked = -float("inf")  # when the newest answer was
        self._there: dict[str, Offer] = {}  # by address
        self._known: set[str] = set()  # names of all that were ever there

    def tell(self, asked: float, there: Sequence[Offer]) -> None:
        """Who was there at `asked` by time.monotonic. Nothing is said of the first answer."""
        now = {offer.address: offer for offer in there}
        with self._lock:
            if asked <= self._asked:
                return
            is_first, self._asked = self._asked < 0, asked
            before, self._there = self._there, now
            known, self._known = self._known, self._known | {offer.name for offer in there}
        if is_first:
            return
        went = {offer.name: offer for address, offer in before.items() if address not in now}
        came = {offer.name for address, offer in now.items() if address not in before}
        left = {name for name, offer in went.items() if offer.leaves} - came
        self._line(went.keys() & came, "was started again", "were started again")
        self._line(went.keys() - came - left, "is gone", "are gone")
        self._line(left, "has left", "have left")
        self._line((came & known) - went.keys(), "is there again", "are there again")
        self._line(came - known, "has joined", "have joined")

    def _line(self, names: AbstractSet[str], one: str, many: str) -> None:
        if names:
            first, more = sorted(names)[:NAMED], len(names) - NAMED
            self._say(f"{', '.join(first)}{f' and {more} more' if more > 0 else ''} {one if len(names) == 1 else many}")
