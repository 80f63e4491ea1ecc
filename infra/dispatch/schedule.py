"""Which item of a call goes to which worker next: plain data, without a clock or a cluster.

Items of several batches wait in one queue, by the order of their batch, its number and their index in it. A worker has
one item at a time. One that is late is given to another worker too, where its place in the queue is: the first result
counts, and the late worker gets nothing more until it answers. Of idle workers the one that is idle longest is first,
of many some by turns and the fastest. An idle worker also takes what another has that is not known or is tried anew.

Of a batch, and what is before it, a worker gets as much as lets all workers end at once, by what items cost each of
them (`infra.dispatch.shares`). So the last items go to who will have done them first, and who is too slow for them goes
on with a later batch. Items with `Sizes` are cut to what a worker should have, before anybody has had them; others are
given whole, or left to faster workers. Where nothing was measured, an idle worker gets the first item there is.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from math import ceil

from infra.dispatch.deaths import Deaths
from infra.dispatch.firsts import Firsts
from infra.dispatch.items import Assignment, Assignments, Item
from infra.dispatch.lateness import Lateness
from infra.dispatch.outlook import Outlook
from infra.dispatch.shares import is_sooner, share
from infra.dispatch.speeds import Made, Speeds

MANY = 8  # idle workers, up to which all are looked at in each turn
LOOKS = 2  # of more: by turns, and of the fastest, one after the other for which there is nothing


class Schedule:
    """Every item: waiting, held by workers, or done."""

    def __init__(self, late_after: float, *, cut: Callable[[Item, int], Item] | None = None) -> None:
        """`late_after`: the least of `Lateness`; `cut(item, units)`: leaves an item its first so many units, and
        returns a new one with the others."""
        self.speeds = Speeds()
        self.deaths = Deaths()
        self.failed: defaultdict[Item, set[str]] = defaultdict(set)  # workers on which it raised
        self._waiting: list[Item] = []  # a heap
        self._open: set[Item] = set()  # not done
        self._out = Assignments()
        self.lateness = Lateness(self._out, self.speeds, late_after)
        self._firsts = Firsts(self._out, self.speeds)
        self._outlook = Outlook(self._out, self.speeds)
        self._idle_since: defaultdict[str, float] = defaultdict(float)  # by worker
        self._declined: dict[str, float] = {}  # since when an idle worker leaves what waits to others
        self._tried: Counter[str] = Counter()  # how often it was given something all the same
        self._looked: defaultdict[str, int] = defaultdict(int)  # in which turn an idle worker was looked at last
        self._turn = 0
        self.changed = False  # since the last `hand_out`: there may be more for it, whatever is late by now
        self._cut = cut
        self._made: dict[Item, Made] = {}  # of items that go on, so far; by their first slice

    @property
    def assignments(self) -> list[Assignment]:
        """All that are out."""
        return list(self._out)

    def keep(self, workers: Collection[str]) -> None:
        """Forget what is known of all other workers: one that was started again has another address."""
        self.changed = True
        self.lateness.keep(workers)
        self._firsts.keep(workers)
        self.speeds.keep(workers)
        for known in (self._idle_since, self._declined, self._tried, self._looked):
            for gone in known.keys() - workers:
                del known[gone]

    def add(self, items: Iterable[Item]) -> None:
        """Queue items."""
        self.changed = True
        for item in items:
            self._open.add(item)
            heapq.heappush(self._waiting, item)

    def hand_out(
        self, workers: Sequence[str], now: float, silent: Collection[str] = (), quiet: Collection[str] = ()
    ) -> list[Assignment]:
        """The new assignments of idle workers. `silent` ones get none, nor do `quiet` ones, which give no sign of life,
        where there are others."""
        self.changed = False
        self._drop_done()
        overdue = [item for item in self.lateness.overdue(now, quiet) if item in self._open]
        if not (self._waiting or overdue or self._firsts):
            return []
        known = [worker for worker in workers if worker not in silent]
        answering = [worker for worker in known if worker not in quiet] or known
        idle = sorted((each for each in answering if each not in self._out.held), key=self._idle_since.__getitem__)
        if not idle:
            return []
        self._outlook.look(answering, now, lambda: set(self._waiting) & self._open, overdue)
        if not (self._waiting or overdue or self._firsts.are_due(now, self._outlook.costs)):
            return []
        if len(idle) <= MANY:
            return list(self._given(idle, len(idle)))
        self._turn += 1  # the fastest come second: else who is not known, or was slow, would have nothing for ever
        made = list(self._given(sorted(idle, key=self._looked.__getitem__), LOOKS))
        item = self._waiting[0] if self._waiting else None
        out = frozenset() if item is None else self._left_out(item)
        able = [worker for worker in idle if self._looked[worker] != self._turn and worker not in out]
        return made + list(self._given(self._outlook.fastest(able, item), LOOKS))  # what these leave, slower ones leave

    def _given(self, idle: Iterable[str], looks: int) -> Iterator[Assignment]:
        """New assignments of these, until there is nothing for so many one after the other."""
        left = looks
        for worker in idle:
            self._looked[worker] = self._turn
            if (assigned := self._assigned(worker)) is not None:
                left = looks
                yield assigned
            elif (left := left - 1) == 0:
                return

    def _assigned(self, worker: str) -> Assignment | None:
        """A new assignment of this worker, if anything waits, is late or is another's first, that it should have."""
        now = self._outlook.now
        item, waited = self._next(worker)
        if item is None and (item := self._firsts.share(worker, now, self._may_take)) is None:
            return None
        assigned = self._out.add(Assignment(item, worker, now))
        self._outlook.given(assigned, waited=waited)
        self._firsts.add(assigned, tried=self._tried[worker] > 0)
        return assigned

    def _may_take(self, item: Item, worker: str) -> bool:
        """Whether a worker may do what nobody else does but who has it for the first time."""
        return item in self._open and worker not in self._unfit(item)

    def _unfit(self, item: Item) -> frozenset[str]:
        """On whom the item failed, who died of it, and who is to be done without."""
        return item.without | self.failed.get(item, set()) | self.deaths.without(item)

    def _drop_done(self) -> None:
        """Have the first in the queue be one that is not done."""
        while self._waiting and self._waiting[0] not in self._open:
            heapq.heappop(self._waiting)

    def _next(self, worker: str) -> tuple[Item | None, bool]:
        """The first item in the queue for `worker`, the late ones of other workers among them; whether it waited."""
        for_others: list[Item] = []
        outlook, units, left = self._outlook, 0, False
        self._drop_done()
        while self._waiting:
            if worker not in self._left_out(self._waiting[0]):
                if units := self._share(self._waiting[0], worker):
                    break
                left = True
            for_others.append(heapq.heappop(self._waiting))
            self._drop_done()
        late = (item for item in outlook.overdue if self._may_have(item, worker))
        found, waited = min(late, default=None), False
        if self._waiting and (found is None or self._waiting[0] <= found):
            found, waited = self._cut_to(heapq.heappop(self._waiting), units), True
        elif found is not None:
            for assigned in self._out.of(found):
                assigned.late = True
        for item in for_others:
            heapq.heappush(self._waiting, item)
        if found is not None:
            self._declined.pop(worker, None)
        elif left:
            self._declined.setdefault(worker, outlook.now)
        return found, waited

    def _cut_to(self, item: Item, units: int) -> Item:
        """The item with its first so many units; the rest waits in its place."""
        if units == item.units:
            return item
        assert self._cut is not None
        rest, first = self._cut(item, units), replace(item, units=units)
        self._open.remove(item)  # they are equal
        self._open |= {first, rest}
        self.deaths.split(item, rest)
        heapq.heappush(self._waiting, rest)
        return first

    def _share(self, item: Item, worker: str) -> int:
        """Units of the item that the worker should have; 0 where others will have done all of its batch before."""
        outlook = self._outlook
        begun = item.slice > 0 or item.without or item in self.failed
        sizes = None if begun else item.sizes
        if outlook.costs is None:
            return item.units if sizes is None else min(ceil(item.units / outlook.idle), sizes.first)
        mine, place = outlook.costs.of(worker), outlook.costs.place[worker]
        units = least = item.units if sizes is None else 1
        ahead, pool = outlook.ahead(item), outlook.pool(outlook.costs, self._left_out(item))
        if sizes is not None:
            most = min(self.speeds.most(worker) or sizes.first, item.units)
            units = min(share(ahead, mine, pool, place, sizes.seconds), most)
        seconds = mine.seconds(units)
        if not self.speeds.knows(worker):
            return units
        if not is_sooner(ahead, least, pool, place, seconds):
            self._tried[worker] = 0
            return units
        if outlook.now - self._declined.get(worker, outlook.now) <= seconds * 2 ** self._tried[worker]:
            return 0
        self._tried[worker] += 1  # it may not be slow any more; who is idle has the item too (`Firsts`)
        return units

    def _may_have(self, item: Item, worker: str) -> bool:
        """Whether a late item may go to this worker too."""
        return all(worker != at.worker for at in self._out.of(item)) and worker not in self._left_out(item)

    def _left_out(self, item: Item) -> frozenset[str]:
        """Who is unfit, where there is one that has not tried it."""
        if not (out := self._unfit(item)):
            return out
        tried = out | {at.worker for at in self._out.of(item)}
        return out if any(worker not in tried for worker in self._outlook.workers) else frozenset()

    def late(self, copy: Assignment) -> list[Assignment]:
        """The late assignments of this one's item, but for first ones."""
        return [other for other in self._out.of(copy.item) if other.late and not other.is_first]

    def late_firsts(self, now: float) -> list[Assignment]:
        """The first ones that are late by now, once each: their workers count as late from then on."""
        return self._firsts.late(now, self.lateness.limit)

    def finished(self, assigned: Assignment, now: float) -> None:
        """The assignment's worker has done it, and may have the next one."""
        self.lateness.add(assigned, now - assigned.since)
        self.changed = True
        assigned.finished, assigned.late, assigned.was_late = now, False, assigned.late and not assigned.is_first
        self._out.answered(assigned)
        self._idle_since[assigned.worker] = now

    def measured(self, assigned: Assignment, made: Made, seconds: float, *, first: bool, over: bool) -> None:
        """What an assignment has made of its item in so many seconds without waits for weights; whether its result was
        the `first` of the item, and there is no more to be made of it (`over`)."""
        slower = assigned.was_late or (assigned.is_first and not first)  # than it was, or than another
        (self.speeds.anew if slower else self.speeds.add)(assigned.worker, made, seconds)
        if not first:
            return
        before = self._made.pop(replace(assigned.item, slice=0), Made(0.0, 0.0))
        so_far = Made(before.steps + made.steps, before.tokens + made.tokens)
        if over:
            self.speeds.over(assigned.worker, assigned.item.units, so_far)
        else:
            self._made[replace(assigned.item, slice=0)] = so_far

    def of(self, assigned: Assignment) -> Sequence[Assignment]:
        """Those of the same item whose result has not come in."""
        return self._out.of(assigned.item)

    def wants(self, assigned: Assignment) -> bool:
        """Whether the assignment's result would be the first of its item."""
        return assigned.item in self._open

    def done(self, assigned: Assignment) -> tuple[bool, list[Assignment]]:
        """The assignment's result is here: whether it is the first of its item, and others of it to be cancelled."""
        self._out.remove(assigned)
        self.changed = self.changed or assigned.finished is None  # its worker, which raised, is idle
        if assigned.item not in self._open:
            return False, []
        self._open.remove(assigned.item)
        self.deaths.forget([assigned.item])
        return True, self._let_go(self._out.of(assigned.item))

    def give_back(self, assigned: Assignment) -> None:
        """Requeue the item of a failed assignment, unless another worker has it."""
        self.changed = True
        self._out.remove(assigned)
        self._firsts.unshare(assigned.item)
        if assigned.item in self._open and not self._out.of(assigned.item):
            heapq.heappush(self._waiting, assigned.item)

    def unsettled(self, batch: int) -> list[str]:
        """The workers on which undone items of this batch failed, one entry per item; its failures are forgotten."""
        failed = {item: self.failed.pop(item) for item in [*self.failed] if item.batch == batch}
        return [worker for item, workers in failed.items() if item in self._open for worker in workers]

    def withdraw(self, batch: int) -> list[Assignment]:
        """Drop the items of a batch; the assignments to be cancelled."""
        for item in [item for item in self._open if item.batch == batch]:  # of one that is done it tells the speed
            self._firsts.unshare(item)
        self._made = {item: made for item, made in self._made.items() if item.batch != batch}
        self._open = {item for item in self._open if item.batch != batch}
        self.deaths.forget_batch(batch)
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
            self.changed = True
        return gone
