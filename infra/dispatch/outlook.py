"""What is known of all workers while idle ones are handed items, all at one moment: what items cost each, when it can
begin another, and what waits."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from infra.dispatch.items import Assignment, Assignments, Item
from infra.dispatch.shares import Pool
from infra.dispatch.speeds import Costs, Speeds

OVERDUE = 1.5  # times its expected time, after which nobody counts on a worker


class Outlook:
    """Of some workers, at one moment."""

    def __init__(self, out: Assignments, speeds: Speeds) -> None:
        self.workers: Sequence[str] = ()
        self.now = 0.0
        self.costs: Costs | None = None  # where anything is known
        self.idle = 0  # how many have nothing, where nothing is known
        self.overdue: Sequence[Item] = ()  # items that wait for nobody but late workers
        self._out, self._speeds = out, speeds
        self._pools: dict[frozenset[str], Pool] = {}  # by who is left out
        self._units: Counter[tuple[tuple[int, ...], int]] = Counter()  # by the order and the number of their batch
        self._of: list[str] = []  # the workers of these arrays
        self._since = self._held = self._starts = np.empty(0)  # of what each has: seconds, units; see `_free`

    def look(
        self, workers: Sequence[str], now: float, waiting: Callable[[], Iterable[Item]], overdue: Sequence[Item]
    ) -> None:
        """Have it be of these workers, at `now`; `waiting`: what waits, in any order."""
        self.workers, self.now, self.costs = workers, now, self._speeds.costs(workers)
        self.overdue = overdue
        self._pools.clear()
        self._units.clear()
        if self.costs is None:
            self.idle = len(workers) - len(self._out.held.keys() & set(workers))
        else:
            self._starts = self._free(self.costs)
            for item in waiting():
                self._units[item.order, item.batch] += item.units

    def fastest(self, workers: Sequence[str], item: Item | None) -> Sequence[str]:
        """The same, who does the item, or as much as a first part of it has, in the shortest time first."""
        if (costs := self.costs) is None:
            return workers
        places = [costs.place[worker] for worker in workers]
        units = 1 if item is None else min(item.units, item.units if item.sizes is None else item.sizes.first)
        return [workers[at] for at in np.argsort(costs.fixed[places] + units * costs.each[places], kind="stable")]

    def ahead(self, item: Item) -> int:
        """Units that wait of the item's batch, and of those before it."""
        return sum(units for batch, units in self._units.items() if batch <= (item.order, item.batch))

    def _free(self, costs: Costs) -> NDArray[np.float64]:
        """Seconds until each of them can have begun another item; infinity of one that is overdue."""
        changed: Iterable[str] = self._out.changed & costs.place.keys()
        if self._of != self.workers:
            self._of = changed = list(self.workers)
            self._since, self._held = np.zeros((2, len(self._of)))
        for worker in changed:
            at, place = self._out.held.get(worker), costs.place[worker]
            self._since[place], self._held[place] = (0.0, 0) if at is None else (at.since, at.item.units)
        self._out.changed.clear()
        waited, expected = self.now - self._since, costs.fixed + self._held * costs.each
        left = np.where(waited > OVERDUE * expected, np.inf, np.maximum(0.0, expected - waited))
        starts: NDArray[np.float64] = np.where(self._held > 0, left, 0.0) + costs.fixed
        return starts

    def pool(self, costs: Costs, without: frozenset[str]) -> Pool:
        """Who may do an item: all but these, and those that are overdue."""
        if without not in self._pools:
            starts = self._starts.copy()
            starts[[costs.place[worker] for worker in without if worker in costs.place]] = np.inf
            self._pools[without] = Pool(starts, costs.each)
        return self._pools[without]

    def given(self, assigned: Assignment, *, waited: bool) -> None:
        """A worker was given something; whether it is what waited."""
        self.idle -= 1
        self.overdue = [item for item in self.overdue if item != assigned.item]
        if self.costs is None:
            return
        item, cost = assigned.item, self.costs.of(assigned.worker)
        place, start = self.costs.place[assigned.worker], cost.seconds(item.units) + cost.fixed
        if waited:
            self._units[item.order, item.batch] -= item.units
        self._starts[place] = start
        for without, pool in self._pools.items():
            if assigned.worker not in without:
                pool.moved(place, start)
