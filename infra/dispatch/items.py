"""An item of a call, and its assignments to workers."""

from collections.abc import Iterator, KeysView, Sequence
from dataclasses import dataclass, field, replace

from infra.dispatch.shares import Sizes


@dataclass(frozen=True, order=True)
class Item:
    """One item, by its place in the queue."""

    order: tuple[int, ...]  # of its batch: (step, first group)
    batch: int
    index: int
    slice: int = 0  # how often it has come back unfinished
    without: frozenset[str] = field(default=frozenset(), compare=False)  # workers that get it where there are no others
    units: int = field(default=1, compare=False)
    sizes: Sizes | None = field(default=None, compare=False)  # None: it is handed out whole

    def next(self) -> "Item":
        """The same, to be gone on with."""
        return replace(self, slice=self.slice + 1)


@dataclass(eq=False)
class Assignment:
    """One item on one worker. Times are seconds of any clock that only goes forward."""

    item: Item
    worker: str  # its address
    since: float
    finished: float | None = None  # when its worker had done it; the result is being fetched
    late: bool = False  # another worker has the item too
    was_late: bool = False  # before it was finished
    is_first: bool = False  # and that for no fault of this one's: it is not known, or is tried anew

    def waited(self, now: float) -> float:
        """Seconds since the assignment began, or its worker had done it."""
        return now - (self.since if self.finished is None else self.finished)


class Assignments:
    """Those whose result has not come in."""

    def __init__(self) -> None:
        self.held: dict[str, Assignment] = {}  # of workers that have not done what they have
        self.changed: set[str] = set()  # workers whose entry in it is another than when this was emptied
        self._of: dict[Item, list[Assignment]] = {}

    def __iter__(self) -> Iterator[Assignment]:
        return (assigned for of in self._of.values() for assigned in of)

    def items(self) -> KeysView[Item]:
        """The items that they are of."""
        return self._of.keys()

    def of(self, item: Item) -> Sequence[Assignment]:
        """Those of this item."""
        return self._of.get(item, ())

    def add(self, assigned: Assignment) -> Assignment:
        """One more; the same."""
        self._of.setdefault(assigned.item, []).append(assigned)
        self.held[assigned.worker] = assigned
        self.changed.add(assigned.worker)
        return assigned

    def answered(self, assigned: Assignment) -> None:
        """Its worker has done it."""
        if self.held.get(assigned.worker) is assigned:
            del self.held[assigned.worker]
            self.changed.add(assigned.worker)

    def remove(self, assigned: Assignment) -> None:
        """One less."""
        of = self._of[assigned.item]
        of.remove(assigned)
        if not of:
            del self._of[assigned.item]
        self.answered(assigned)
