"""What one caller has leased of a call, and the results that come back to it."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from queue import SimpleQueue
from typing import Any, Protocol

from infra.cluster.placement import Offer
from infra.dispatch.items import Item
from infra.dispatch.shares import Sizes
from infra.dispatch.speeds import Made


class Cuts(Protocol):
    """How large the items of a batch are, and how they are cut into what suits each worker before anybody has had them.
    Without it nothing is known of what they should take."""

    def sizes(self, index: int) -> Sizes | None:
        """That the parts of an item should have; None where it cannot be cut."""

    def units(self, index: int) -> int:
        """Of an item."""

    def cut(self, index: int, units: int) -> int:
        """Leave an item its first so many units; the index of a new item, the last one, with the others."""

    def made(self, index: int, result: Any) -> Made:
        """What a worker has made of an item with this result."""


@dataclass(frozen=True, eq=False)
class LeaseBatch:
    """The items of one caller, and its queue of their results."""

    function: Callable[..., Any]
    items: Sequence[tuple[Any, ...]]
    order: tuple[int, ...]
    check: Callable[[int, Any], str] | None  # of an index and its result: why it is refused, or nothing
    at_once: tuple[type[Exception], ...]  # what is raised whichever worker raised it first
    done: Callable[[int, Any, Offer], bool]  # of an index, its result and who has made it: False: it goes on
    without: Callable[[int], frozenset[str]]  # of an index: addresses of workers that get it where there are no others
    cuts: Cuts | None = None
    tokens: Callable[[int], int] = lambda _: 0  # of an index, for the timeline; 0: not known
    number: int = field(default_factory=itertools.count(1).__next__)
    returned: SimpleQueue[tuple[int, Any] | BaseException] = field(default_factory=SimpleQueue)

    def waiting(self) -> Iterator[Item]:
        """Its items, to be handed out."""
        for index in range(len(self.items)):
            item = Item(self.order, self.number, index, without=self.without(index))
            if self.cuts is not None:
                item = replace(item, units=self.cuts.units(index), sizes=self.cuts.sizes(index))
            yield item

    def cut(self, item: Item, units: int) -> Item:
        """Leave an item its first so many units; a new one with the others."""
        assert self.cuts is not None
        return replace(item, index=self.cuts.cut(item.index, units), units=item.units - units)

    def results(self) -> Iterator[tuple[int, Any]]:
        """(index, result) of every item, as they come in; raises what ended the batch."""
        came = 0
        while came < len(self.items):  # those that were cut among them
            returned = self.returned.get()
            if isinstance(returned, BaseException):
                raise returned
            came += 1
            yield returned
