"""Which item of a call goes to which worker next: plain data, without a clock or a cluster.

Items of several batches wait in one queue, by the order of their batch, its number and their index in it. A worker has
one item at a time. One that is late is given to another worker too, where its place in the queue is: the first result
counts, and the late worker gets nothing more until it answers. Of idle workers the one that is idle longest is first.
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace

from infra.cluster.durations import Durations, late_after
from infra.cluster.lease_config import PATIENCE

QUIET_SHARE = 0.2  # of the least seconds, for a worker that gives no sign of life
LOOK_SECONDS = 0.5  # between two looks at all assignments for late ones


@dataclass(frozen=True, order=True)
class Item:
    """One item, by its place in the queue."""

    order: tuple[int, ...]  # of its batch: (step, wave)
    batch: int
    index: int
    slice: int = 0  # how often it has come back unfinished
    without: frozenset[str] = field(default=frozenset(), compare=False)  # workers that get it where there are no others

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

    def waited(self, now: float) -> float:
        """Seconds since the assignment began, or its worker had done it."""
        return now - (self.since if self.finished is None else self.finished)


class Schedule:
    """Every item: waiting, held by workers, or done."""

    def __init__(self, late_after: float, patience: float = PATIENCE) -> None:
        """`late_after`: no assignment is late before so many seconds, nor before a fifth of them on a worker that gives
        no sign of life; `patience`: times its expected time after which it is."""
        self.late_after = late_after
        self.patience = patience
        self.deaths: Counter[Item] = Counter()
        self.failed: defaultdict[Item, set[str]] = defaultdict(set)  # workers on which it raised
        self._waiting: list[Item] = []  # a heap
        self._open: set[Item] = set()  # not done
        self._at: dict[Item, list[Assignment]] = {}  # whose result has not come in
        self._held: set[str] = set()  # workers that have not done what they have
        self._late: list[Item] = []  # those that were late at the last look
        self._looked: tuple[float, frozenset[str]] | None = None  # when that was, and who was quiet
        self._took = Durations()  # by worker
        self._idle_since: dict[str, float] = {}  # by worker
        self._took_late: dict[str, float] = {}  # seconds of a late assignment: all that is known of some workers

    @property
    def assignments(self) -> list[Assignment]:
        """Those whose result has not come in."""
        return [assigned for of in self._at.values() for assigned in of]

    def keep(self, workers: Collection[str]) -> None:
        """Forget what is known of all other workers: one that was started again has another address."""
        self._took.keep(workers)
        for known in (self._idle_since, self._took_late):
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
        if self._held.issuperset(workers) or not self._has_any(now, quiet):
            return []
        known = [worker for worker in workers if worker not in silent]
        answering = [worker for worker in known if worker not in quiet] or known
        idle = [worker for worker in answering if worker not in self._held]
        made = []
        for worker in sorted(idle, key=lambda worker: self._idle_since.get(worker, 0.0)):
            if not self._has_any(now, quiet):
                break
            if (item := self._next(worker, answering, now, quiet)) is not None:
                made.append(Assignment(item, worker, now))
                self._at.setdefault(item, []).append(made[-1])
                self._held.add(worker)
        return made

    def _next(self, worker: str, workers: Sequence[str], now: float, quiet: Collection[str]) -> Item | None:
        """The first item in the queue for `worker`, the late ones of other workers among them."""
        for_others: list[Item] = []
        while self._waiting and self._is_for_others(self._waiting[0], worker, workers):
            for_others.append(heapq.heappop(self._waiting))
            self._drop_done()
        late = (item for item in self._overdue(now, quiet) if self._may_have(item, worker, workers))
        overdue = min(late, default=None)
        found = overdue
        if self._waiting and (overdue is None or self._waiting[0] <= overdue):
            found = heapq.heappop(self._waiting)
        elif overdue is not None:
            for assigned in self._of(overdue):
                assigned.late = True
        for item in for_others:
            heapq.heappush(self._waiting, item)
        return found

    def _has_any(self, now: float, quiet: Collection[str]) -> bool:
        """Whether any item waits, or is late."""
        self._drop_done()
        return bool(self._waiting) or bool(self._overdue(now, quiet))

    def _drop_done(self) -> None:
        """Have the first in the queue be one that is not done."""
        while self._waiting and self._waiting[0] not in self._open:
            heapq.heappop(self._waiting)

    def _may_have(self, item: Item, worker: str, workers: Sequence[str]) -> bool:
        """Whether a late item may go to this worker too."""
        return all(worker != at.worker for at in self._of(item)) and not self._is_for_others(item, worker, workers)

    def _is_for_others(self, item: Item, worker: str, workers: Sequence[str]) -> bool:
        """Whether the item failed on `worker`, or is to be done without it, and one of `workers` has not tried it."""
        out = item.without | self.failed.get(item, set())
        if worker not in out:
            return False
        tried = out | {at.worker for at in self._of(item)}
        return any(other not in tried for other in workers)

    def _overdue(self, now: float, quiet: Collection[str]) -> list[Item]:
        """Items all of whose assignments are late; one that has become so is noticed within LOOK_SECONDS."""

        def is_late(item: Item) -> bool:
            at = self._at.get(item, ())
            return bool(at) and all(
                each.waited(now) > self.limit(each.worker, quiet=each.worker in quiet) for each in at
            )

        looked, quiet = self._looked, frozenset(quiet)
        if looked is None or looked[1] != quiet or not 0 <= now - looked[0] < LOOK_SECONDS:
            self._looked = now, quiet
            self._late = [item for item in self._at if item in self._open and is_late(item)]
            return self._late
        return [item for item in self._late if item in self._open and is_late(item)]

    def _of(self, item: Item) -> Sequence[Assignment]:
        return self._at.get(item, ())

    def late(self, copy: Assignment) -> list[Assignment]:
        """The late assignments of this one's item."""
        return [other for other in self._of(copy.item) if other.late]

    def _remove(self, assigned: Assignment) -> None:
        of = self._at[assigned.item]
        of.remove(assigned)
        if not of:
            del self._at[assigned.item]
        if assigned.finished is None:
            self._held.discard(assigned.worker)

    def limit(self, worker: str, *, quiet: bool = False) -> float:
        """Seconds after which an assignment of this worker is late: by its own, a late one of its, all workers'."""
        longest = self._took.longest(worker)
        if longest is None:
            longest = self._took_late.get(worker, self._took.longest())
        return late_after(longest, self.late_after * (QUIET_SHARE if quiet else 1), self.patience)

    def finished(self, assigned: Assignment, now: float) -> None:
        """The assignment's worker has done it, and may have the next one."""
        if assigned.late:
            self._took_late[assigned.worker] = now - assigned.since
        else:
            self._took.add(assigned.worker, now - assigned.since)
        assigned.finished, assigned.late = now, False
        self._held.discard(assigned.worker)
        self._idle_since[assigned.worker] = now

    def wants(self, assigned: Assignment) -> bool:
        """Whether the assignment's result would be the first of its item."""
        return assigned.item in self._open

    def done(self, assigned: Assignment) -> tuple[bool, list[Assignment]]:
        """The assignment's result is here: whether it is the first of its item, and others of it to be cancelled."""
        self._remove(assigned)
        if assigned.item not in self._open:
            return False, []
        self._open.remove(assigned.item)
        self.deaths.pop(assigned.item, None)
        return True, self._let_go(self._of(assigned.item))

    def give_back(self, assigned: Assignment) -> None:
        """Requeue the item of a failed assignment, unless another worker has it."""
        self._remove(assigned)
        if assigned.item in self._open and not self._of(assigned.item):
            heapq.heappush(self._waiting, assigned.item)

    def unsettled(self, batch: int) -> list[str]:
        """The workers on which undone items of this batch failed, one entry per item; its failures are forgotten."""
        mine = [item for item in self.failed if item.batch == batch]
        failed = {item: self.failed.pop(item) for item in mine}
        return [worker for item, workers in failed.items() if item in self._open for worker in workers]

    def withdraw(self, batch: int) -> list[Assignment]:
        """Drop the items of a batch; the assignments to be cancelled."""
        self._open = {item for item in self._open if item.batch != batch}
        for item in [item for item in self.deaths if item.batch == batch]:
            del self.deaths[item]
        return self._let_go([assigned for assigned in self.assignments if assigned.item.batch == batch])

    def take_back(self) -> list[Assignment]:
        """Requeue every item that a worker has in time; the assignments to be cancelled."""
        taken = self._let_go(self.assignments)
        for item in {assigned.item for assigned in taken} & self._open:
            if not self._of(item):
                heapq.heappush(self._waiting, item)
        return taken

    def _let_go(self, of: Sequence[Assignment]) -> list[Assignment]:
        """Remove those of these that are not late. A late worker keeps its assignment until it answers."""
        gone = [assigned for assigned in of if assigned.finished is None and not assigned.late]
        for assigned in gone:
            self._remove(assigned)
        return gone
