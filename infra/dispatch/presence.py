"""Lines that say which workers come and go."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from infra.cluster.placement import Offer

GRACE_SECONDS = 5.0  # a worker that is there again by then was not gone: it was started again, or lost its connection
GATHER_SECONDS = 1.0  # for what comes at once
PAUSE_SECONDS = 10.0  # between two lots of lines
NAMED = 4  # workers in a line
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

    addresses: frozenset[str] = frozenset()  # where it was last
    leaves: bool = False  # it was asked to
    lacking: float | None = None  # since when it is not there
    is_said: bool = False  # that it is gone


class Presence:
    """Says how the scheduler's answers differ, one from the next. Safe to use from several threads at once."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self._say = say
        self._lock = threading.Lock()
        self._asked = self._said = -float("inf")  # when the newest answer was, and the last lines
        self._workers: dict[str, _Worker] = {}  # all that were ever there, by name
        self._news: dict[str, tuple[str, str]] = {}  # by name, in words for one and for many
        self._since = 0.0  # when the oldest of them was

    def tell(self, asked: float, there: Iterable[Offer]) -> None:
        """Who was there at `asked`, by time.monotonic. Nothing is said of the first answer."""
        offers = defaultdict(list)
        for offer in there:
            offers[offer.name].append(offer)
        with self._lock:
            if asked <= self._asked:
                return
            is_first, self._asked = not self._workers, asked
            had_news = bool(self._news)
            for name, of in offers.items():
                if (news := self._is_there(name, of)) is not None and not is_first:
                    self._news[name] = news
            for name in self._workers.keys() - offers.keys():
                if (news := self._is_lacking(self._workers[name], asked)) is not None:
                    self._news[name] = news
            if not had_news:
                self._since = asked
            if not self._news or asked < max(self._since + GATHER_SECONDS, self._said + PAUSE_SECONDS):
                return
            self._said = asked
            lots: dict[tuple[str, str], list[str]] = defaultdict(list)
            for name, words in self._news.items():
                lots[words].append(name)
            self._news.clear()
        for words, names in lots.items():
            self._say(_line(sorted(names), *words))

    def _is_there(self, name: str, offers: list[Offer]) -> tuple[str, str] | None:
        worker, is_new = self._workers.get(name), name not in self._workers
        if worker is None:
            worker = self._workers[name] = _Worker()
        addresses = frozenset(offer.address for offer in offers)
        news = JOINED if is_new else AGAIN if worker.is_said else None
        if news is None and worker.addresses.isdisjoint(addresses):
            news = STARTED
        worker.addresses, worker.leaves = addresses, all(offer.leaves for offer in offers)
        worker.lacking, worker.is_said = None, False
        return news

    def _is_lacking(self, worker: _Worker, now: float) -> tuple[str, str] | None:
        if worker.lacking is None:
            worker.lacking = now
        if worker.is_said or now < worker.lacking + GRACE_SECONDS:
            return None
        worker.is_said = True
        return LEFT if worker.leaves else GONE


def _line(names: list[str], one: str, many: str) -> str:
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return f"{', '.join(names[:NAMED])}{more} {one if len(names) == 1 else many}"
