"""The deaths of workers that had an item: whose fault they may be, the item's or the worker's."""

from collections import Counter, defaultdict
from collections.abc import Collection, Mapping

from infra.cluster.placement import Offer
from infra.dispatch.calls import PoisonedCallError
from infra.dispatch.items import Item

OFTEN = 2  # deaths of one worker, its successors' among them, on an item that others get then


def poisoned(call: str, deaths: Mapping[str, int]) -> PoisonedCallError:
    """The error for a call that workers of these names died in, so often."""
    who = ", ".join(f"{name} {times} times" if times > 1 else name for name, times in deaths.items())
    return PoisonedCallError(
        f"{call}: {sum(deaths.values())} workers died while they ran the same call ({who}); it is not tried again "
        "(out of memory? see the log of the worker)"
    )


class Deaths:
    """Those on items that are not done."""

    def __init__(self) -> None:
        self._of: defaultdict[Item, Counter[str]] = defaultdict(Counter)  # by worker's name
        self._without: dict[Item, frozenset[str]] = {}

    def of(self, item: Item) -> Counter[str]:
        """Of this item, by the names of the workers."""
        return self._of.get(item, Counter())

    def add(self, item: Item, name: str) -> None:
        """The worker of this name has died and had the item."""
        self._of[item][name] += 1

    def split(self, item: Item, rest: Item) -> None:
        """Part of the item is another now, whose fault they may have been."""
        if item in self._of:
            self._of[rest] = Counter(self._of[item])

    def forget(self, items: Collection[Item]) -> None:
        """These are done, or no longer wanted."""
        for item in items:
            self._of.pop(item, None)
            self._without.pop(item, None)

    def forget_batch(self, batch: int) -> None:
        """The same, for all of a batch."""
        self.forget([item for item in self._of if item.batch == batch])

    def look(self, workers: Mapping[str, Offer]) -> None:
        """These workers are there, by address."""
        self._without = {
            item: frozenset(at for at, offer in workers.items() if died[offer.name] >= OFTEN)
            for item, died in self._of.items()
            if max(died.values()) >= OFTEN
        }

    def without(self, item: Item) -> frozenset[str]:
        """The addresses of the workers that others go before: those of their name die of it."""
        return self._without.get(item, frozenset())

    def is_fatal(self, item: Item, attempts: int, workers: Mapping[str, Offer]) -> bool:
        """Whether it is the item that kills: so many died, and not of one name alone where there are others."""
        died = self.of(item)
        others = any(offer.name not in died for offer in workers.values())
        return died.total() >= attempts and (len(died) > 1 or not others)
