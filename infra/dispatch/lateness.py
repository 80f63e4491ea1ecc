"""Which assignments of a call are late: plain data, without a clock or a cluster."""

from collections import Counter
from collections.abc import Collection, Iterator

from infra.dispatch.durations import Durations, late_after
from infra.dispatch.items import Assignment, Assignments, Item
from infra.dispatch.lease_config import PATIENCE
from infra.dispatch.speeds import Speeds

QUIET_SHARE = 0.2  # of the least seconds, for a worker that gives no sign of life
LOOK_SECONDS = 0.5  # between two looks at all assignments for late ones, up to
LOOKED_AT = 250  # of them; of more in proportion


class Lateness:
    """Of the assignments that are out, by how long those before them took."""

    def __init__(self, out: Assignments, speeds: Speeds, least: float, patience: float = PATIENCE) -> None:
        """`least`: no assignment is late before so many seconds, nor before a fifth of them on a worker that gives no
        sign of life; `patience`: times its expected time after which it is."""
        self.least = least
        self.patience = patience
        self._out = out
        self._speeds = speeds
        self._took = Durations()  # by worker
        self._count: Counter[str] = Counter()  # of those, by worker
        self._took_late: dict[str, float] = {}  # seconds of a late assignment: all that is known of some workers
        self._found: list[Item] = []  # those that were late at the last look
        self._looked: tuple[float, frozenset[str]] | None = None  # when that was, and who was quiet

    def keep(self, workers: Collection[str]) -> None:
        """Forget what is known of all other workers."""
        self._took.keep(workers)
        for known in (self._took_late, self._count):
            for gone in known.keys() - workers:
                del known[gone]

    def add(self, assigned: Assignment, seconds: float) -> None:
        """An assignment took so many."""
        if assigned.late and not assigned.is_first:
            self._took_late[assigned.worker] = seconds
            return
        if self._count[assigned.worker] == 1:  # its first one has imported, loaded and compiled
            self._took.forget(assigned.worker)
        self._count[assigned.worker] += 1
        self._took.add(assigned.worker, seconds)

    @property
    def longest(self) -> float:
        """Seconds of the longest of all workers' last ones; 0 where there was none."""
        return self._took.longest() or 0.0

    def limit(self, worker: str, units: int = 1, *, quiet: bool = False) -> float:
        """Seconds after which an assignment of this worker is late: by its own, a late one of its, all workers'; and by
        what so many units should take it."""
        longest = self._took.longest(worker)
        if longest is None:
            longest = self._took_late.get(worker, self._took.longest())
        if longest is not None and (cost := self._speeds.cost(worker)) is not None:
            longest = max(longest, cost.seconds(units))
        return late_after(longest, self.least * (QUIET_SHARE if quiet else 1), self.patience)

    def overdue(self, now: float, quiet: Collection[str]) -> Iterator[Item]:
        """Items all of whose assignments are late; one that has become so is noticed at the next look. `quiet`: workers
        that give no sign of life."""
        looked, without_sign = self._looked, frozenset(quiet)
        pause = LOOK_SECONDS * max(1.0, len(self._out.items()) / LOOKED_AT)
        if looked is None or looked[1] != without_sign or not 0 <= now - looked[0] < pause:
            self._looked = now, without_sign
            self._found = [item for item in self._out.items() if self._is_late(item, now, quiet)]
            return iter(self._found)
        return (item for item in self._found if self._is_late(item, now, quiet))

    def _is_late(self, item: Item, now: float, quiet: Collection[str]) -> bool:
        of = self._out.of(item)
        return bool(of) and all(
            each.waited(now) > self.limit(each.worker, item.units, quiet=each.worker in quiet) for each in of
        )
