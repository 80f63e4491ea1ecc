"""Which item of a call goes to which worker next: plain data, without a clock, a thread or a cluster.

Items of several batches wait in one queue, by the order of their batch, its number and their index in it. A worker has
one item at a time. One that is late is given to another worker too, where its place in the queue is: the first result
counts, and the late worker gets nothing more until it answers.
"""

import heapq
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

from infra.cluster.durations import LATE_RATIO, RECENT, UNMEASURED_SECONDS


@dataclass(frozen=True, order=True)
class Item:
    """One item, where it stands in the queue."""

    order: tuple[int, ...]  # of its batch: (step, wave)
    batch: int
    index: int


@dataclass(eq=False)
class Lease:
    """One item on one worker. Times are seconds of any clock that only goes forward."""

    item: Item
    worker: str  # its address
    since: float
    finished: float | None = None  # when its worker had done it; its result is on the way
    late: bool = False  # another worker has been asked

    def waited(self, now: float) -> float:
        """Seconds since anything was heard of it."""
        return now - (self.since if self.finished is None else self.finished)


class Schedule:
    """Every item: waiting, held by workers, or done."""

    def __init__(self, late_after: float) -> None:
        """`late_after`: nothing is late before so many seconds."""
        self.late_after = late_after
        self.leases: list[Lease] = []  # whose result has not come in
        self.deaths: Counter[Item] = Counter()
        self.failed: defaultdict[Item, set[str]] = defaultdict(set)  # workers on which it raised
        self._waiting: list[Item] = []  # a heap
        self._open: set[Item] = set()  # not done
        self._took: dict[str, deque[float]] = {}  # seconds, by worker
        self._took_late: dict[str, float] = {}  # of one that was late: all that is known of some workers

    @property
    def waiting(self) -> int:
        """Items that no worker has."""
        return sum(item in self._open for item in self._waiting)

    def add(self, items: Iterable[Item]) -> None:
        """More to do."""
        for item in items:
            self._open.add(item)
            heapq.heappush(self._waiting, item)

    def hand_out(self, workers: Sequence[str], now: float, silent: Collection[str] = ()) -> list[Lease]:
        """What those of the workers get that have nothing; `silent` ones get nothing."""
        held = {lease.worker for lease in self.leases if lease.finished is None}
        answering = [worker for worker in workers if worker not in silent]
        made = []
        for worker in answering:
            if worker not in held and (item := self._next(worker, answering, now)) is not None:
                made.append(Lease(item, worker, now))
                self.leases.append(made[-1])
        return made

    def _next(self, worker: str, workers: Sequence[str], now: float) -> Item | None:
        """The first item in the queue for this one of the workers, a late one of somebody else's among them."""
        for_others: list[Item] = []
        while self._waiting:
            if self._waiting[0] not in self._open:
                heapq.heappop(self._waiting)
            elif self._is_for_others(self._waiting[0], worker, workers):
                for_others.append(heapq.heappop(self._waiting))
            else:
                break
        overdue = min((item for item in self._overdue(now) if self._may_have(item, worker, workers)), default=None)
        found = overdue
        if self._waiting and (overdue is None or self._waiting[0] <= overdue):
            found = heapq.heappop(self._waiting)
        elif overdue is not None:
            for lease in self._of(overdue):
                lease.late = True
        for item in for_others:
            heapq.heappush(self._waiting, item)
        return found

    def _may_have(self, item: Item, worker: str, workers: Sequence[str]) -> bool:
        """Whether a late item may go to this worker too."""
        return all(worker != at.worker for at in self._of(item)) and not self._is_for_others(item, worker, workers)

    def _is_for_others(self, item: Item, worker: str, workers: Sequence[str]) -> bool:
        """Whether it failed on this worker, and one of the workers is there that has not tried it."""
        if worker not in self.failed.get(item, ()):
            return False
        tried = self.failed[item] | {at.worker for at in self._of(item)}
        return any(other not in tried for other in workers)

    def _overdue(self, now: float) -> list[Item]:
        """Items all of whose workers are late."""
        out = {lease.item for lease in self.leases} & self._open
        return [item for item in out if all(at.waited(now) > self.limit(at.worker) for at in self._of(item))]

    def _of(self, item: Item) -> list[Lease]:
        return [lease for lease in self.leases if lease.item == item]

    def limit(self, worker: str) -> float:
        """Seconds after which an item of this worker is late."""
        if own := self._took.get(worker):
            longest = max(own)
        elif worker in self._took_late:
            longest = self._took_late[worker]
        elif self._took:
            longest = max(max(took) for took in self._took.values())
        else:
            return max(self.late_after, UNMEASURED_SECONDS)
        return max(self.late_after, LATE_RATIO * longest)

    def finished(self, lease: Lease, now: float) -> None:
        """Its worker has done it, and may have the next one."""
        if lease.late:
            self._took_late[lease.worker] = now - lease.since
        else:
            self._took.setdefault(lease.worker, deque(maxlen=RECENT)).append(now - lease.since)
        lease.finished, lease.late = now, False

    def wants(self, lease: Lease) -> bool:
        """Whether its result would be the first of its item."""
        return lease.item in self._open

    def done(self, lease: Lease) -> tuple[bool, list[Lease]]:
        """Its result is here: whether it is the first of its item, and what of the same item need not go on."""
        self.leases.remove(lease)
        if lease.item not in self._open:
            return False, []
        self._open.remove(lease.item)
        return True, self._let_go(lambda other: other.item == lease.item)

    def give_back(self, lease: Lease) -> None:
        """It came to nothing: its item is handed out anew, unless another worker has it."""
        self.leases.remove(lease)
        if lease.item in self._open and not self._of(lease.item):
            heapq.heappush(self._waiting, lease.item)

    def unsettled(self, batch: int) -> list[str]:
        """The workers on which items of this batch failed that no other has done, each as often; all are forgotten."""
        mine = [item for item in self.failed if item.batch == batch]
        failed = {item: self.failed.pop(item) for item in mine}
        return [worker for item, workers in failed.items() if item in self._open for worker in workers]

    def withdraw(self, batch: int) -> list[Lease]:
        """Nobody wants the results of this batch any more; what need not go on."""
        self._open = {item for item in self._open if item.batch != batch}
        return self._let_go(lambda lease: lease.item.batch == batch)

    def take_back(self) -> list[Lease]:
        """From the workers: every item is handed out anew, in time; what need not go on."""
        taken = self._let_go(lambda _: True)
        for item in {lease.item for lease in taken} & self._open:
            if not self._of(item):
                heapq.heappush(self._waiting, item)
        return taken

    def _let_go(self, of: Callable[[Lease], bool]) -> list[Lease]:
        """Those of the leases that are worked on in time. A late worker is left with its own until it answers."""
        gone = [lease for lease in self.leases if of(lease) and lease.finished is None and not lease.late]
        self.leases = [lease for lease in self.leases if lease not in gone]
        return gone
