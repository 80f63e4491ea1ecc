"""Steps as the cluster would run them: an idle worker takes the first call that is ready and that it may run.

This is what `infra.dispatch.leases` and Dask do, in a model of a few lines: calls of an earlier step come first, leases
are pulled, a call for the whole batch waits for all of its leases, and batch k begins when version k − staleness is
published. Versions are published one after the other, and the flow waits for the one before. Leases that are cut to
what suits each worker are many small ones here, of which a worker's first in a step takes what a lease takes whatever
its size. Workers of a machine share its cores with each other and with other programs.
(ReaL judges its plans by unrolled steps too: arXiv 2406.14088, section 5.)
"""

import heapq
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace

from infra.planning.costs import Costs, Places, Work
from infra.planning.fair_share import rates

NEXT_UPDATE, NEXT_STEP = "next update", "next step"  # what may begin, in place of a worker's name
# of a step with leases as large as suits each worker, which are as good as any size
LEASES, LEASES_PER_WORKER = 8, 2  # the latter where that is more
STEPS = 8  # that are looked at, after those at the beginning, for each batch that is under way at once


@dataclass(frozen=True)
class Simulated:
    """A step in the long run."""

    seconds: float
    busy: Mapping[str, float]  # seconds of each worker a step, its waits for weights included, those for cores not
    computed: Mapping[str, float]  # seconds of its cores that each machine computes a step
    shares: Mapping[str, Mapping[str, float]]  # of each call's work, by worker


@dataclass(frozen=True, order=True)
class _Item:
    """A call of one lease, or of the whole batch, that is ready; the first in this order is the next."""

    step: int
    since: float
    lease: int
    at: int  # the call's place in the order


@dataclass
class _Running:
    """An item on its worker."""

    item: _Item
    wants: float  # cores
    left: float  # seconds that it takes from `since` on, were it alone
    since: float
    pace: float = 0.0  # seconds of it that are done in one
    number: int = 0  # of the event that is its end as things are


def simulate(costs: Costs, places: Places, staleness: int) -> Simulated:
    """The mean of a step, once the pipeline has been filled and emptied."""
    costs = replace(costs, cut=costs.cut and staleness > 0)
    if costs.cut:
        leases = max(LEASES, LEASES_PER_WORKER * max(len(workers) for workers in places.values()))
        costs = replace(costs, leases=max(costs.leases, leases))
    return _Simulation(costs, places, staleness).run()


class _Simulation:
    def __init__(self, costs: Costs, places: Places, staleness: int) -> None:
        self._costs, self._places, self._staleness = costs, places, staleness
        self._first = 2 * (staleness + 1)  # of the steps that count
        self._last = self._first + STEPS * (staleness + 1)
        self._idle = {worker for workers in places.values() for worker in workers}
        self._ready: list[_Item] = []  # a heap
        self._early: list[_Item] = []  # calls for a batch, before the one before it is logged
        self._coming: list[tuple[float, int, str]] = []  # a heap: when, number, worker; or what may begin
        self._running: dict[str, _Running] = {}  # by worker
        self._begun = self._logged = self._number = 0
        self._left: dict[tuple[int, str], int] = {}  # leases undone, by step and call
        self._arrived: Counter[tuple[int, int, int]] = Counter()  # calls done that one waits for: step, call, lease
        self._trained: list[float] = []  # when each version was there
        self._published = 0.0  # when the newest was handed over
        self._with_lease: set[tuple[int, str, str]] = set()  # step, call, worker
        self._version: dict[tuple[str, str], int] = {}  # of what is held, by worker
        self._busy: dict[str, float] = defaultdict(float)
        self._computed: dict[str, float] = defaultdict(float)
        self._done: dict[str, Counter[str]] = defaultdict(Counter)

    def run(self) -> Simulated:
        for _ in range(self._staleness + 1):
            self._begin(0.0)
        while len(self._trained) < self._last:
            now, number, worker = heapq.heappop(self._coming)
            if worker == NEXT_STEP:
                self._begin(now)
            elif worker == NEXT_UPDATE:
                self._logged += 1
                early, self._early = self._early, []
                for each in early:
                    self._queue(_Item(each.step, now, each.lease, each.at))
            elif worker in self._running and self._running[worker].number == number:  # as things still are
                self._end(worker, self._running.pop(worker).item, now)
            if not self._coming or self._coming[0][0] > now:  # all that ends at this moment has ended
                self._hand_out(now)
        counted = self._last - self._first
        return Simulated(
            (self._trained[-1] - self._trained[self._first - 1]) / counted,
            {worker: seconds / counted for worker, seconds in sorted(self._busy.items())},
            {machine: seconds / counted for machine, seconds in sorted(self._computed.items())},
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
            worker = min(idle, key=lambda each, call=call: (call.alone(each), each))  # type: ignore[misc]
            self._idle.remove(worker)
            seconds = call.seconds[worker] / self._count(call) + self._fixed(call, worker, item.step)
            fetching = self._fetching(call, worker)
            self._running[worker] = _Running(item, call.wants(worker), seconds + fetching, now)
            if self._first <= item.step < self._last:
                self._busy[worker] += seconds + fetching
                if worker in self._costs.machine:
                    self._computed[self._costs.machine[worker]] += call.wants(worker) * seconds
                self._done[call.name][worker] += 1
        for item in nobody:
            heapq.heappush(self._ready, item)
        self._pace(now)

    def _pace(self, now: float) -> None:
        """Say when each item ends as things are now: by the cores that it has, beside what runs on its machine."""
        machines: dict[str, dict[str, float]] = defaultdict(dict)
        for worker, running in self._running.items():
            machines[self._costs.machine.get(worker, worker)][worker] = running.wants
        for machine, wants in machines.items():
            cores = self._costs.cores.get(machine)
            others = self._costs.others.get(machine, 0.0)
            paces = dict.fromkeys(wants, 1.0) if cores is None else rates(wants, cores, others)
            for worker, pace in paces.items():
                running = self._running[worker]
                if running.pace != pace:
                    running.left -= running.pace * (now - running.since)
                    running.since, running.pace = now, pace
                    running.number = self._later(now + max(0.0, running.left) / pace, worker)

    def _later(self, when: float, worker: str) -> int:
        self._number += 1
        heapq.heappush(self._coming, (when, self._number, worker))
        return self._number

    def _fixed(self, call: Work, worker: str, step: int) -> float:
        """Seconds that a lease takes whatever its size: of all in a step but once, where they are parts of one."""
        begun = (step, call.name, worker)
        if self._costs.cut and begun in self._with_lease:
            return 0.0
        self._with_lease.add(begun)
        return call.fixed.get(worker, 0.0)

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
            begun = max(now, self._published)
            self._published = begun + self._costs.handing_over
            self._later(begun + self._costs.logging, NEXT_UPDATE)
            self._later(self._published, NEXT_STEP)

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
        early = self._costs.calls[item.at].each == "batch" and item.step > self._logged
        if early:
            self._early.append(item)
        else:
            heapq.heappush(self._ready, item)
