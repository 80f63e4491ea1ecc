"""Steps as the cluster would run them: an idle worker takes the first call that is ready and that it may run.

This is what `infra.cluster.leases` and Dask do, in a model of a few lines: calls of an earlier step come first, leases
are pulled, a call for the whole batch waits for all of its leases, and batch k begins when version k − staleness is
there. (ReaL judges its plans by unrolled steps too: arXiv 2406.14088, section 5.)
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from infra.cluster.costs import Costs, Places, Work

STEPS = 8  # that are looked at, after those at the beginning


@dataclass(frozen=True)
class Simulated:
    """A step in the long run."""

    seconds: float
    busy: Mapping[str, float]  # seconds of each worker a step, its waits for weights included
    shares: Mapping[str, Mapping[str, float]]  # of each call's work, by worker


@dataclass(frozen=True, order=True)
class _Item:
    """A call of one lease, or of the whole batch, that is ready; the first in this order is the next."""

    step: int
    since: float
    lease: int
    at: int  # the call's place in the order


def simulate(costs: Costs, places: Places, staleness: int, steps: int = STEPS) -> Simulated:
    """The mean of `steps` steps, once `staleness` + 1 of them have filled the pipeline."""
    return _Simulation(costs, places, staleness, steps).run()


class _Simulation:
    def __init__(self, costs: Costs, places: Places, staleness: int, steps: int) -> None:
        self._costs, self._places, self._staleness = costs, places, staleness
        self._first, self._last = staleness + 1, staleness + 1 + steps  # the steps that count
        self._idle = {worker for workers in places.values() for worker in workers}
        self._ready: list[_Item] = []  # a heap
        self._early: list[_Item] = []  # calls for a batch, before the one before it is handed over
        self._coming: list[tuple[float, int, str, _Item | None]] = []  # a heap: when, number, worker; or a step begins
        self._begun = self._handed_over = self._number = 0
        self._left: dict[tuple[int, str], int] = {}  # leases undone, by step and call
        self._arrived: Counter[tuple[int, int, int]] = Counter()  # calls done that one waits for: step, call, lease
        self._trained: list[float] = []  # when each version was there
        self._version: dict[tuple[str, str], int] = {}  # of what is held, by worker
        self._busy: dict[str, float] = defaultdict(float)
        self._done: dict[str, Counter[str]] = defaultdict(Counter)

    def run(self) -> Simulated:
        for _ in range(self._staleness + 1):
            self._begin(0.0)
        while len(self._trained) < self._last:
            now, _, worker, item = heapq.heappop(self._coming)
            if item is None:
                self._handed_over += 1
                self._begin(now)
                early, self._early = self._early, []
                for each in early:
                    self._queue(_Item(each.step, now, each.lease, each.at))
            else:
                self._end(worker, item, now)
            if not self._coming or self._coming[0][0] > now:  # all that ends at this moment has ended
                self._hand_out(now)
        counted = self._last - self._first
        return Simulated(
            (self._trained[-1] - self._trained[self._first - 1]) / counted,
            {worker: seconds / counted for worker, seconds in sorted(self._busy.items())},
            {name: {w: n / by.total() for w, n in sorted(by.items())} for name, by in self._done.items()},
        )

    def _begin(self, now: float) -> None:
        """Begin the next step."""
        for at, call in enumerate(self._costs.calls):
            self._left[self._begun, call.name] = self._count(call)
            if not call.before:
                for lease in range(self._count(call)):
                    heapq.heappush(self._ready, _Item(self._begun, now, lease, at))
        self._begun += 1
        self._hand_out(now)

    def _count(self, call: Work) -> int:
        return self._costs.leases if call.each == "lease" else 1

    def _hand_out(self, now: float) -> None:
        nobody = []
        while self._ready and self._idle:
            item = heapq.heappop(self._ready)
            call = self._costs.calls[item.at]
            idle = [worker for worker in self._places[call.name] if worker in self._idle]
            if not idle:
                nobody.append(item)
                continue
            worker = min(idle, key=lambda each, call=call: (call.seconds[each], each))  # type: ignore[misc]
            seconds = call.seconds[worker] / self._count(call) + self._fetching(call, worker)
            self._idle.remove(worker)
            self._later(now + seconds, worker, item)
            if self._first <= item.step < self._last:
                self._busy[worker] += seconds
                self._done[call.name][worker] += 1
        for item in nobody:
            heapq.heappush(self._ready, item)

    def _later(self, when: float, worker: str = "", item: _Item | None = None) -> None:
        self._number += 1
        heapq.heappush(self._coming, (when, self._number, worker, item))

    def _fetching(self, call: Work, worker: str) -> float:
        """Seconds that the worker waits for a newer version of the call's model; it has the first one."""
        if call.holds is None or (seconds := self._costs.fetching.get((call.holds, worker), 0.0)) == 0:
            return 0.0
        had = self._version.get((call.holds, worker), 0)
        self._version[call.holds, worker] = len(self._trained)
        return seconds if had < len(self._trained) else 0.0

    def _end(self, worker: str, item: _Item, now: float) -> None:
        self._idle.add(worker)
        done = self._costs.calls[item.at]
        self._left[item.step, done.name] -= 1
        for at, call in enumerate(self._costs.calls):
            if done.name in call.before:
                self._follow(at, call, item, now)
        if done.trains and not any(self._left[item.step, call.name] for call in self._costs.calls if call.trains):
            self._trained.append(now)
            self._later(now + self._costs.handing_over)

    def _follow(self, at: int, call: Work, item: _Item, now: float) -> None:
        """Queue what reads from this item, once all else that it reads is there."""
        if call.each == "batch":
            if all(self._left[item.step, name] == 0 for name in call.before):
                self._queue(_Item(item.step, now, 0, at))
            return
        self._arrived[item.step, at, item.lease] += 1
        if self._arrived[item.step, at, item.lease] == len(call.before):
            self._queue(_Item(item.step, now, item.lease, at))

    def _queue(self, item: _Item) -> None:
        """A batch is trained on after the one before it."""
        early = self._costs.calls[item.at].each == "batch" and item.step > self._handed_over
        if early:
            self._early.append(item)
        else:
            heapq.heappush(self._ready, item)
