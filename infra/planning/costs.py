"""What the calls of a step cost on each worker, as plain data: seconds, memory, links."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from typing import Literal

Places = Mapping[str, tuple[str, ...]]  # the workers of each call, by name


class PlanError(ValueError):
    """Calls that the workers cannot do."""


@dataclass(frozen=True)
class Work:
    """A call of a step, and what the whole step's work of it takes."""

    name: str
    model: str | None  # that it runs; None where a program does
    each: Literal["lease", "batch"]
    before: tuple[str, ...]  # calls that write what it reads
    trains: bool
    seconds: Mapping[str, float]  # by worker that may run it: of one whole step's work, were it alone with it, beside
    fixed: Mapping[str, float] = field(default_factory=dict)  # those of each lease whatever its size, by worker
    computing: Mapping[str, float] = field(default_factory=dict)  # cores that it uses there meanwhile; else one

    @property
    def holds(self) -> str | None:
        """What a worker keeps in memory for it: a model, which takes more where it is trained."""
        return f"{self.model} in training" if self.model is not None and self.trains else self.model

    def wants(self, worker: str) -> float:
        """The cores that it uses on this worker, were it alone."""
        return self.computing.get(worker, 1.0)

    def alone(self, worker: str, leases: float = 1.0) -> float:
        """Seconds of the whole step's work on this worker, in so many leases."""
        return self.seconds[worker] + leases * self.fixed.get(worker, 0.0)

    def times(self, factor: float) -> "Work":
        """The work, so many times as long."""
        seconds, fixed = ({w: factor * one for w, one in each.items()} for each in (self.seconds, self.fixed))
        return replace(self, seconds=seconds, fixed=fixed)


@dataclass(frozen=True)
class Costs:
    """Of one step. What is not in `memory` or `fetching` is unlimited, or nothing."""

    calls: tuple[Work, ...]  # each after those that it reads from
    leases: int  # that a step's work is handed out in
    cut: bool = field(default=False, kw_only=True)  # to what suits each worker, one lease a step, where steps overlap
    size: Mapping[str, float] = field(default_factory=dict)  # bytes of what is held, by `Work.holds`
    memory: Mapping[str, float] = field(default_factory=dict)  # bytes, by worker
    fetching: Mapping[tuple[str, str], float] = field(default_factory=dict)  # seconds for a new version: (held, worker)
    machine: Mapping[str, str] = field(default_factory=dict)  # that a worker shares with others
    cores: Mapping[str, float] = field(default_factory=dict)  # of a machine
    others: Mapping[str, float] = field(default_factory=dict)  # cores of a machine that other programs want
    handing_over: float = (
        0.0  # seconds of a publication: from its begin to the first call of the step that waits for it
    )
    logging: float = 0.0  # seconds between this begin and the next update

    @property
    def workers(self) -> tuple[str, ...]:
        """All that may run a call."""
        return tuple(sorted({worker for call in self.calls for worker in call.seconds}))

    def sharing(self, machine: str) -> tuple[str, ...]:
        """The workers that share this machine's cores."""
        return tuple(worker for worker in self.workers if self.machine.get(worker) == machine)

    def needs(self, worker: str, places: Places) -> float:
        """Bytes that this worker holds."""
        held = {call.holds for call in self.calls if worker in places[call.name]}
        return sum(self.size.get(one, 0.0) for one in held if one is not None)

    def fits(self, places: Places) -> bool:
        """Whether each worker has the memory for what it holds."""
        return all(self.needs(worker, places) <= self.memory.get(worker, inf) for worker in self.workers)


def check_costs(costs: Costs) -> None:
    """Raise PlanError for a call that no worker may run, or that none has the memory for."""
    for call in costs.calls:
        if not call.seconds:
            raise PlanError(f"no worker may run {call.name}")
        held = costs.size.get(call.holds or "", 0.0)
        largest = max(call.seconds, key=lambda worker: costs.memory.get(worker, inf))
        if held > costs.memory.get(largest, inf):
            raise PlanError(
                f"{call.holds} ({amount(held)}) fits on no worker that may run {call.name}: {largest}, the largest, "
                f"has {amount(costs.memory[largest])}"
            )


def amount(count: float) -> str:
    """Bytes, for people."""
    return f"{count / 1e9:.3g} GB" if count >= 1e9 else f"{count / 1e6:.3g} MB"


def listed(names: Iterable[str]) -> str:
    """Names, for people."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last
