"""Which item of a call goes to which worker next: plain data, without a clock or a cluster.

Items of several batches wait in one queue, by the order of their batch, its number and their index in it. A worker has
one item at a time. One that is late is given to another worker too, where its place in the queue is: the first result
counts, and the late worker gets nothing more until it answers. Of idle workers the one that is idle longest is first.
The first item of a worker, of which nothing is known, waits for none of them: who has nothing to do takes it too.

Of a batch, and what is before it, a worker gets as much as lets all workers end at once, by what items cost each of
them (`infra.dispatch.shares`). So the last items go to who will have done them first, and who is too slow for them goes
on with a later batch. Items with `Sizes` are cut to what a worker should have, before anybody has had them; others are
given whole, or left to faster workers. Where nothing was measured, an idle worker gets the first item there is.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil

from infra.dispatch.firsts import Firsts
from infra.dispatch.items import Assignment, Assignments, Item
from infra.dispatch.lateness import Lateness
from infra.dispatch.shares import Free, is_sooner, share
from infra.dispatch.speeds import Cost, Made, Speeds

OVERDUE = 1.5  # times its expected time, after which nobody counts on a worker
Costs = Mapping[str, Cost]  # by worker
Queued = tuple[tuple[int, ...], int]  # the order and the number of a batch


class Schedule:
    """Every item: waiting, held by workers, or done."""

    def __init__(self, late_after: float, *, cut: Callable[[Item, int], Item] | None = None) -> None:
        """`late_after`: the least of `Lateness`; `cut(item, units)`: leaves an item its first so many units, and
        returns a new one with the others."""
        self.speeds = Speeds()
        self.deaths: Counter[Item] = Counter()
        self.failed: defaultdict[Item, set[str]] = defaultdict(set)  # workers on which it raised
        self._waiting: list[Item] = []  # a heap
        self._open: set[Item] = set()  # not done
        self._out = Assignments()
        self.lateness = Lateness(self._out, self.speeds, late_after)
        self._firsts = Firsts(self._out, self.speeds)
        self._idle_since: dict[str, float] = {}  # by worker
        self._declined: dict[str, float] = {}  # since when an idle worker leaves what waits to others
        self._tried: Counter[str] = Counter()  # how often it was given something all the same
        self._cut = cut
        self._made: dict[Item, Made] = {}  # of items that go on, so far; by their first slice

    @property
    def assignments(self) -> list[Assignment]:
        """Those whose result has not come in."""
        return list(self._out)

    def keep(self, workers: Collection[str]) -> None:
        """Forget what is known of all other workers: one that was started again has another address."""
        self.lateness.keep(workers)
        self._firsts.keep(workers)
        self.speeds.keep(workers)
        for known in (self._idle_since, self._declined, self._tried):
            for gone in known.keys() - workers:
                del known[gone]

    def add(self, items: Iterable[Item]) -> None:
        """Queue items."""
        for item in items:
            self._open.add(item)
            heapq.heappush(self._waiting, item)

    def hand_out(
        self, workers: Sequence[str], now: float, silent: Collection[str] = (), quiet: Collection[str] = ()
    ) -> list[Assignment]:
        """The new assignments of idle workers. `silent` ones get none, nor do `quiet` ones, which give no sign of life,
        where there are others."""
        alone = self._firsts.alone(self._open.__contains__)
        if not (has_any := self._has_any(now, quiet)):
            self._declined.clear()
        if (has_any or alone) and not self._out.held.keys() >= set(workers):
            known = [worker for worker in workers if worker not in silent]
            answering = [worker for worker in known if worker not in quiet] or known
            idle = [worker for worker in answering if worker not in self._out.held]
            idle.sort(key=lambda worker: self._idle_since.get(worker, 0.0))
            made = (self._assigned(worker, answering, now, quiet, alone) for worker in idle)
            return [assigned for assigned in made if assigned is not None]
        return []

    def _assigned(
        self, worker: str, workers: Sequence[str], now: float, quiet: Collection[str], alone: list[Assignment]
    ) -> Assignment | None:
        """A new assignment of this worker, if anything waits, is late or is another's first, that it should have."""
        item = self._next(worker, workers, now, quiet) if self._has_any(now, quiet) else None
        if (
            item is None
            and (item := self._firsts.share(worker, now, alone, lambda item: self.failed.get(item, ()))) is None
        ):
            return None
        assigned = self._out.add(Assignment(item, worker, now))
        self._firsts.add(assigned)
        return assigned

    def _has_any(self, now: float, quiet: Collection[str]) -> bool:
        """Whether any item waits, or is late."""
        self._drop_done()
        return bool(self._waiting) or bool(self._overdue(now, quiet))

    def _drop_done(self) -> None:
        """Have the first in the queue be one that is not done."""
        while self._waiting and self._waiting[0] not in self._open:
            heapq.heappop(self._waiting)

    def _next(self, worker: str, workers: Sequence[str], now: float, quiet: Collection[str]) -> Item | None:
        """The first item in the queue for `worker`, the late ones of other workers among them."""
        for_others: list[Item] = []
        units, left, costs = 0, False, self.speeds.costs(workers)
        waiting = self._units_waiting() if costs else {}
        while self._waiting:
            if not self._is_for_others(self._waiting[0], worker, workers):
                if units := self._share(self._waiting[0], worker, workers, now, costs, waiting):
                    break
                left = True
            for_others.append(heapq.heappop(self._waiting))
            self._drop_done()
        late = (item for item in self._overdue(now, quiet) if self._may_have(item, worker, workers))
        overdue = min(late, default=None)
        found = overdue
        if self._waiting and (overdue is None or self._waiting[0] <= overdue):
            found = self._cut_to(heapq.heappop(self._waiting), units)
        elif overdue is not None:
            for assigned in self._out.of(overdue):
                assigned.late = True
        for item in for_others:
            heapq.heappush(self._waiting, item)
        if found is None and left:
            self._declined.setdefault(worker, now)
        else:
            self._declined.pop(worker, None)
        return found

    def _units_waiting(self) -> Mapping[Queued, int]:
        """By the order and the number of their batch."""
        waiting: Counter[Queued] = Counter()
        for item in set(self._waiting) & self._open:
            waiting[item.order, item.batch] += item.units
        return waiting

    def _cut_to(self, item: Item, units: int) -> Item:
        """The item with its first so many units; the rest waits in its place."""
        if units == item.units:
            return item
        assert self._cut is not None
        rest, first = self._cut(item, units), replace(item, units=units)
        self._open.remove(item)  # they are equal
        self._open |= {first, rest}
        heapq.heappush(self._waiting, rest)
        return first

    def _share(
        self, item: Item, worker: str, workers: Sequence[str], now: float, costs: Costs, waiting: Mapping[Queued, int]
    ) -> int:
        """Units of the item that the worker should have; 0 where others will have done all of its batch before."""
        begun = item.slice > 0 or item.without or self.deaths[item] or item in self.failed
        sizes = None if begun else item.sizes
        if not costs:
            idle = len(set(workers) - self._out.held.keys())
            return item.units if sizes is None else min(ceil(item.units / idle), sizes.first)
        ahead = sum(units for batch, units in waiting.items() if batch <= (item.order, item.batch))
        mine, others = costs[worker], list(self._others(item, worker, workers, costs, now))
        units = item.units if sizes is None else min(share(ahead, mine, others, sizes.seconds), item.units)
        if sizes is not None and self.speeds.cost(worker) is None:
            return min(units, sizes.first)
        seconds = mine.seconds(units)
        if not self.speeds.knows(worker) or not is_sooner(ahead, item.units if sizes is None else 1, others, seconds):
            self._tried[worker] = 0
            return units
        if now - self._declined.get(worker, now) <= seconds * 2 ** self._tried[worker]:
            return 0
        self._tried[worker] += 1  # it may not be slow any more, and does not often hold others up if it is
        return units

    def _others(self, item: Item, worker: str, workers: Sequence[str], costs: Costs, now: float) -> Iterator[Free]:
        """Who else may do the item, but for those that are overdue."""
        for other in workers:
            if other == worker or self._is_for_others(item, other, workers):
                continue
            left = 0.0
            if (at := self._out.held.get(other)) is not None:
                expected, waited = costs[other].seconds(at.item.units), at.waited(now)
                if waited > OVERDUE * expected:
                    continue
                left = max(0.0, expected - waited)
            yield Free(left + costs[other].fixed, costs[other].each)

    def _may_have(self, item: Item, worker: str, workers: Sequence[str]) -> bool:
        """Whether a late item may go to this worker too."""
        return all(worker != at.worker for at in self._out.of(item)) and not self._is_for_others(item, worker, workers)

    def _is_for_others(self, item: Item, worker: str, workers: Sequence[str]) -> bool:
        """Whether the item failed on `worker`, or is to be done without it, and one of `workers` has not tried it."""
        out = item.without | self.failed.get(item, set())
        if worker not in out:
            return False
        tried = out | {at.worker for at in self._out.of(item)}
        return any(other not in tried for other in workers)

    def _overdue(self, now: float, quiet: Collection[str]) -> list[Item]:
        """Items that wait for nobody but late workers."""
        return [item for item in self.lateness.overdue(now, quiet) if item in self._open]

    def late(self, copy: Assignment) -> list[Assignment]:
        """The late assignments of this one's item, but for first ones."""
        return [other for other in self._out.of(copy.item) if other.late and not other.is_first]

    def late_firsts(self, now: float) -> list[Assignment]:
        """The first ones that are late by now, once each: their workers count as late from then on."""
        return self._firsts.late(now, self.lateness.limit)

    def finished(self, assigned: Assignment, now: float) -> None:
        """The assignment's worker has done it, and may have the next one."""
        self.lateness.add(assigned, now - assigned.since)
        assigned.finished, assigned.late = now, False
        self._out.answered(assigned)
        self._idle_since[assigned.worker] = now

    def measured(self, assigned: Assignment, made: Made, seconds: float, *, over: bool) -> None:
        """What an assignment has made of its item in so many seconds without waits for weights; `over`: there is no
        more to be made of it."""
        self.speeds.add(assigned.worker, made, seconds)
        before = self._made.pop(replace(assigned.item, slice=0), Made(0.0, 0.0))
        so_far = Made(before.steps + made.steps, before.tokens + made.tokens)
        if over:
            self.speeds.over(assigned.item.units, so_far)
        else:
            self._made[replace(assigned.item, slice=0)] = so_far

    def wants(self, assigned: Assignment) -> bool:
        """Whether the assignment's result would be the first of its item."""
        return assigned.item in self._open

    def done(self, assigned: Assignment) -> tuple[bool, list[Assignment]]:
        """The assignment's result is here: whether it is the first of its item, and others of it to be cancelled."""
        self._out.remove(assigned)
        if assigned.item not in self._open:
            return False, []
        self._open.remove(assigned.item)
        self.deaths.pop(assigned.item, None)
        return True, self._let_go(self._out.of(assigned.item))

    def give_back(self, assigned: Assignment) -> None:
        """Requeue the item of a failed assignment, unless another worker has it."""
        self._out.remove(assigned)
        self._firsts.unshare(assigned.item)
        if assigned.item in self._open and not self._out.of(assigned.item):
            heapq.heappush(self._waiting, assigned.item)

    def unsettled(self, batch: int) -> list[str]:
        """The workers on which undone items of this batch failed, one entry per item; its failures are forgotten."""
        mine = [item for item in self.failed if item.batch == batch]
        failed = {item: self.failed.pop(item) for item in mine}
        return [worker for item, workers in failed.items() if item in self._open for worker in workers]

    def withdraw(self, batch: int) -> list[Assignment]:
        """Drop the items of a batch; the assignments to be cancelled."""
        self._made = {item: made for item, made in self._made.items() if item.batch != batch}
        self._open = {item for item in self._open if item.batch != batch}
        for item in [item for item in self.deaths if item.batch == batch]:
            del self.deaths[item]
        return self._let_go([assigned for assigned in self.assignments if assigned.item.batch == batch])

    def take_back(self) -> list[Assignment]:
        """Requeue every item that a worker has in time; the assignments to be cancelled."""
        for item in self._open:
            self._firsts.unshare(item)
        taken = self._let_go(self.assignments)
        for item in {assigned.item for assigned in taken} & self._open:
            if not self._out.of(item):
                heapq.heappush(self._waiting, item)
        return taken

    def _let_go(self, of: Sequence[Assignment]) -> list[Assignment]:
        """Remove those of these that are not late. A late worker keeps its assignment until it answers."""
        gone = [assigned for assigned in of if assigned.finished is None and not assigned.late]
        for assigned in gone:
            self._out.remove(assigned)
        return gone
