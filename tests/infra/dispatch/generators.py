"""Generators in simulated time, that a `Schedule` hands leases to, and a trainer that takes batch after batch."""

import heapq
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from random import Random

from infra.dispatch.items import Assignment, Item
from infra.dispatch.schedule import Schedule
from infra.dispatch.shares import Sizes
from infra.dispatch.speeds import Made

LENGTH, LONGEST = 160, 40  # tokens of a prompt's completions, and steps until the longest is over
POLL = 0.25  # seconds until idle workers are looked at again


@dataclass(frozen=True)
class Generator:
    """Seconds of its work."""

    token: float
    step: float = 0.0
    first: float = 0.0  # more, of its first lease: imports and weights
    joins: float = 0.0  # when it is there
    dies: float = float("inf")
    slows: float = float("inf")  # when it does, as other work begins there
    times: float = 1.0  # as long as before

    def seconds(self, prompts: int, now: float = 0.0) -> float:
        """Of a lease of so many, begun at `now`."""
        return (self.step * LONGEST + self.token * LENGTH * prompts) * (self.times if now >= self.slows else 1)


@dataclass
class Cluster:
    """What its workers have done by `now`."""

    generators: Mapping[str, Generator]
    sizes: Sizes | None
    noise: float = 0.0  # share by which a lease may take more or less
    seed: int = 0
    late_after: float = 1e6
    now: float = 0.0
    done: Counter[str] = field(default_factory=Counter)  # prompts, by worker
    took: dict[int, float] = field(default_factory=dict)  # when each batch was whole
    leases: list[tuple[str, int, float, float]] = field(default_factory=list)  # worker, prompts, from, to
    busy: Counter[str] = field(default_factory=Counter)  # seconds

    def __post_init__(self) -> None:
        self.schedule = Schedule(self.late_after, cut=self._cut)
        self._count: Counter[int] = Counter()  # items of each batch
        self._left: Counter[int] = Counter()  # prompts of each
        self._coming: list[tuple[float, int, Assignment]] = []
        self._begun: set[str] = set()
        self._random = Random(self.seed)
        self._seen: Counter[tuple[int, int]] = Counter()

    def _cut(self, item: Item, units: int) -> Item:
        self._count[item.batch] += 1
        return replace(item, index=self._count[item.batch] - 1, units=item.units - units)

    def add(self, batch: int, prompts: int, lease: int) -> None:
        """Queue a batch: whole where it is cut, else in leases."""
        sizes = [prompts] if self.sizes is not None else [min(lease, prompts - at) for at in range(0, prompts, lease)]
        self._count[batch], self._left[batch] = len(sizes), prompts
        self.schedule.add(Item((batch,), batch, at, units=units, sizes=self.sizes) for at, units in enumerate(sizes))

    @property
    def waited_for(self) -> list[int]:
        """Batches that are not whole."""
        return sorted(batch for batch, left in self._left.items() if left)

    def turn(self) -> None:
        """Hand out leases, and go on until one comes back, or a while."""
        there = [name for name, each in self.generators.items() if each.joins <= self.now < each.dies]
        for lost in [at for at in self.schedule.assignments if at.worker not in there]:
            self.schedule.give_back(lost)
            self.schedule.deaths.add(lost.item, lost.worker)
        for lease in self.schedule.hand_out(there, self.now):
            of = self.generators[lease.worker]
            seconds = of.seconds(lease.item.units, self.now) * (1 + self.noise * self._random.uniform(-1, 1))
            if lease.worker not in self._begun:
                seconds += of.first
            self._begun.add(lease.worker)
            heapq.heappush(self._coming, (self.now + seconds, id(lease), lease))
            self.leases.append((lease.worker, lease.item.units, self.now, self.now + seconds))
        ends = self._coming[0][0] if self._coming else float("inf")
        self.now = min(ends, self.now + POLL)
        while self._coming and self._coming[0][0] <= self.now:
            _, _, lease = heapq.heappop(self._coming)
            if lease not in self.schedule.assignments or self.generators[lease.worker].dies <= self.now:
                continue
            self.schedule.finished(lease, self.now)
            first, _ = self.schedule.done(lease)
            item, took = lease.item, self.now - lease.since
            self.schedule.measured(lease, Made(LONGEST, LENGTH * item.units), took, first=first, over=first)
            if not first:
                assert lease.is_first or self.late_after < 1e6  # another one took it too
                continue
            self.done[lease.worker] += item.units
            self.busy[lease.worker] += took
            self._left[item.batch] -= item.units
            if not self._left[item.batch]:
                self.took[item.batch] = self.now

    def run(
        self, batches: int, prompts: int, lease: int, ahead: int, trained: Callable[[], float] = lambda: 0.0
    ) -> None:
        """So many batches, of which `ahead` + 1 are under way at once; training takes its time between two of them."""
        added, learned, free = 0, 0, 0.0
        while learned < batches:
            while added <= learned + ahead and added < batches:
                self.add(added, prompts, lease)
                added += 1
            self.turn()
            if learned in self.took and self.now >= max(free, self.took[learned]):
                learned, free = learned + 1, self.now + trained()
