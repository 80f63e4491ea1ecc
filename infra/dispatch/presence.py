"""Lines that say which workers come and go."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from infra.cluster.placement import Offer

GRACE_SECONDS = 5.0  # a worker that is there again by then was not gone: it was started again, or lost its connection
GATHER_SECONDS = 1.0  # for what comes at once
PAUSE_SECONDS = 10.0  # between two lots of lines
NAMED = 4  # workers in a line
Words = tuple[str, str]  # for one and for many
AGAIN, JOINED, GONE, LEFT, STARTED = (
    ("is there again", "are there again"),
    ("has joined", "have joined"),
    ("is gone", "are gone"),
    ("has left", "have left"),
    ("was started again", "were started again"),
)


@dataclass
class _Worker:
    """All of one name."""

    said: Words | None = None  # of it last; of what was there first, that it has joined
    addresses: frozenset[str] = frozenset()  # where it was last
    leaves: bool = False  # it was asked to
    lacking: float | None = None  # since when it is not there
    moved: bool = False  # it is another process than that of which was said

    def is_there(self, addresses: frozenset[str], *, leaves: bool) -> None:
        self.moved |= self.addresses.isdisjoint(addresses)
        self.addresses, self.leaves, self.lacking = addresses, leaves, None

    def news(self, now: float) -> Words | None:
        """What has changed since something was said of it; None where that is so, or so again."""
        is_known = self.said not in (None, GONE, LEFT)
        if self.lacking is not None and now >= self.lacking + GRACE_SECONDS:
            return (LEFT if self.leaves else GONE) if is_known else None
        if not is_known:
            return JOINED if self.said is None else AGAIN
        return STARTED if self.moved else None


class Presence:
    """Says how what is there differs from what was said last. Safe to use from several threads at once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._asked = self._said = -float("inf")  # when the newest answer was, and the last lines
        self._workers: dict[str, _Worker] = {}  # all that were ever there, by name
        self._since: float | None = None  # when the oldest of the news was

    def tell(self, asked: float, there: Iterable[Offer]) -> None:
        """Who was there at `asked`, by time.monotonic. Nothing is said of the first answer."""
        offers = defaultdict(list)
        for offer in there:
            offers[offer.name].append(offer)
        with self._lock:
            if asked <= self._asked:
                return
            is_first, self._asked = not self._workers, asked
            self._notice(offers, is_first=is_first)
            news = {name: words for name, worker in self._workers.items() if (words := worker.news(asked)) is not None}
            if not news:
                self._since = None
                return
            self._since = asked if self._since is None else self._since
            if asked < max(self._since + GATHER_SECONDS, self._said + PAUSE_SECONDS):
                return
            self._said, self._since = asked, None
            lots: dict[Words, list[str]] = defaultdict(list)
            for name, words in news.items():
                self._workers[name].said, self._workers[name].moved = words, False
                lots[words].append(name)
        for words, names in lots.items():
            self._say(_line(sorted(names), *words))

    def _notice(self, offers: Mapping[str, list[Offer]], *, is_first: bool) -> None:
        for name, of in offers.items():
            addresses, leaves = frozenset(offer.address for offer in of), all(offer.leaves for offer in of)
            if name in self._workers:
                self._workers[name].is_there(addresses, leaves=leaves)
            else:
                self._workers[name] = _Worker(JOINED if is_first else None, addresses, leaves)
        for name in self._workers.keys() - offers.keys():
            if self._workers[name].lacking is None:
                self._workers[name].lacking = self._asked


def _line(names: list[str], one: str, many: str) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more} {one if len(names) == 1 else many}"
