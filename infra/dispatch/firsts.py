"""The first items of workers of which nothing is known: plain data, without a clock or a cluster.

Such a worker may import, load and compile for long. So that nobody waits for that, another one that has nothing to do
takes the item too, and the first result counts. It happens once to each worker: the next item is its own, which tells
its speed.
"""

from collections.abc import Callable, Collection

from infra.dispatch.items import Assignment, Assignments, Item
from infra.dispatch.speeds import Speeds


class Firsts:
    """Of the assignments that are out."""

    def __init__(self, out: Assignments, speeds: Speeds) -> None:
        self._out = out
        self._speeds = speeds
        self._held: list[Assignment] = []  # the oldest first
        self._shared: set[str] = set()  # workers whose first item another one took too

    def keep(self, workers: Collection[str]) -> None:
        """Forget all other workers."""
        self._shared &= set(workers)

    def add(self, assigned: Assignment) -> None:
        """An assignment was made."""
        if self._speeds.cost(assigned.worker) is None and assigned.worker not in self._shared:
            self._held.append(assigned)

    def alone(self, is_open: Callable[[Item], bool]) -> list[Assignment]:
        """Those whose item nobody else has, once anything is known of anybody; the oldest first."""
        if not self._speeds.knows_any:
            return []
        self._held = [held for held in self._held if self._out.held.get(held.worker) is held]
        return [held for held in self._held if not held.late and is_open(held.item)]

    def share(
        self, worker: str, now: float, alone: list[Assignment], failed: Callable[[Item], Collection[str]]
    ) -> Item | None:
        """The item of the first of these that its worker has had for as long as this one takes for it; not one that
        has `failed` on this one."""
        if not self._speeds.knows(worker) or (mine := self._speeds.cost(worker)) is None:
            return None
        for held in alone:
            if held.waited(now) < mine.seconds(held.item.units):
                break
            if worker not in (held.worker, *held.item.without, *failed(held.item)):
                alone.remove(held)
                held.late = held.is_first = True
                self._shared.add(held.worker)
                return held.item
        return None

    def unshare(self, item: Item) -> None:
        """Who took the item too has it no more, and has not done it."""
        for assigned in self._out.of(item):
            if assigned.is_first:
                assigned.late = assigned.is_first = False
                self._shared.discard(assigned.worker)

    def late(self, now: float, limit: Callable[[str], float]) -> list[Assignment]:
        """Those that are shared and late by now, after so many seconds, once each: they count as late from then on."""
        late = [held for held in self._held if held.is_first and held.waited(now) > limit(held.worker)]
        for assigned in late:
            assigned.is_first = False
        return late
