"""What one caller has leased of a call, and the results that come back to it."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

from infra.cluster.placement import Offer
from infra.cluster.schedule import Item


@dataclass(frozen=True, eq=False)
class Batch:
    """The items of one caller, and its queue of their results."""

    function: Callable[..., Any]
    items: Sequence[tuple[Any, ...]]
    order: tuple[int, ...]
    check: Callable[[int, Any], str] | None  # of an index and its result: why it is refused, or nothing
    at_once: tuple[type[Exception], ...]  # what is raised whichever worker raised it first
    done: Callable[[int, Any, Offer], bool]  # of an index, its result and who has made it: False: it goes on
    without: Callable[[int], frozenset[str]]  # of an index: addresses of workers that get it where there are no others
    number: int = field(default_factory=itertools.count(1).__next__)
    returned: SimpleQueue[tuple[int, Any] | BaseException] = field(default_factory=SimpleQueue)

    def waiting(self) -> Iterator[Item]:
        """Its items, to be handed out."""
        for index in range(len(self.items)):
            yield Item(self.order, self.number, index, without=self.without(index))

    def results(self) -> Iterator[tuple[int, Any]]:
        """(index, result) of every item, as they come in; raises what ended the batch."""
        for _ in range(len(self.items)):
            returned = self.returned.get()
            if isinstance(returned, BaseException):
                raise returned
            yield returned
