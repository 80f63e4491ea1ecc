"""The first items of workers that are not known, and those of slow ones that are tried anew: plain data, without a
clock or a cluster.

Such a worker may import, load and compile for long. So that nobody waits for that, another one that has nothing to do
takes the item too, and the first result counts. What comes second tells its worker's speed as well.
"""

from collections.abc import Callable, Collection
from math import inf

from infra.dispatch.items import Assignment, Assignments, Item
from infra.dispatch.lateness import LOOK_SECONDS
from infra.dispatch.speeds import Costs, Speeds


class Firsts:
    """Of the assignments that are out; true where there may be any."""

    def __init__(self, out: Assignments, speeds: Speeds) -> None:
        self._out = out
        self._speeds = speeds
        self._alone: dict[str, Assignment] = {}  # the last one of each such worker, the oldest first
        self._copied: list[Assignment] = []  # those that another one took too, and that may be out and not late yet
        self._looked = -inf  # when it was looked for late ones last

    def __bool__(self) -> bool:
        return self._speeds.knows_any and bool(self._alone)

    def keep(self, workers: Collection[str]) -> None:
        """Forget all other workers."""
        for gone in self._alone.keys() - workers:
            del self._alone[gone]

    def add(self, assigned: Assignment, *, tried: bool = False) -> None:
        """An assignment was made; whether its worker is `tried` anew, which may be as slow as it was."""
        self._alone.pop(assigned.worker, None)
        if tried or not self._speeds.knows(assigned.worker):
            self._alone[assigned.worker] = assigned

    def are_due(self, now: float, costs: Costs | None) -> bool:
        """Whether the oldest of these was had for as long as it takes the fastest of some workers."""
        held = next((each for each in self._alone.values() if self._out.held.get(each.worker) is each), None)
        if held is None or costs is None:
            return False
        return held.waited(now) >= float((costs.fixed + held.item.units * costs.each).min())

    def share(self, worker: str, now: float, may_take: Callable[[Item, str], bool]) -> Item | None:
        """The item of the oldest of these that its worker has had for as long as this one takes for it, if nobody else
        has it and this one may take it."""
        if not self._speeds.knows(worker) or (mine := self._speeds.cost(worker)) is None:
            return None
        for held in list(self._alone.values()):
            if self._out.held.get(held.worker) is not held:
                del self._alone[held.worker]  # it has answered
                continue
            if held.waited(now) < mine.seconds(held.item.units):
                break
            if len(self._out.of(held.item)) == 1 and held.worker != worker and may_take(held.item, worker):
                held.late = held.is_first = True
                self._copied.append(self._alone.pop(held.worker))
                return held.item
        return None

    def unshare(self, item: Item) -> None:
        """Who took the item too has it no more, and has not done it."""
        for assigned in self._out.of(item):
            if assigned.is_first:
                assigned.late = assigned.is_first = False
                self._alone = {assigned.worker: assigned, **self._alone}  # it is among the oldest

    def late(self, now: float, limit: Callable[[str], float]) -> list[Assignment]:
        """Those that are shared and late by now, after so many seconds, once each: they count as late from then on. One
        that has become so is noticed within LOOK_SECONDS."""
        if 0 <= now - self._looked < LOOK_SECONDS:
            return []
        self._looked = now
        self._copied = [each for each in self._copied if each.is_first and self._out.held.get(each.worker) is each]
        late = [assigned for assigned in self._copied if assigned.waited(now) > limit(assigned.worker)]
        for assigned in late:
            assigned.is_first = False
        return late
