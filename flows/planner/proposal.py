"""Where a run's calls should run: the plan, why, and the options that do it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from flows.config import TrainConfig
from flows.planner.measured import MeasuredStep, busiest, costs_of, present_places
from infra.cluster.costs import Costs, Places
from infra.cluster.placement import WORKER
from infra.cluster.plan import Plan, plan, predicted
from rl.graph import Graph

LEASES = (0.5, 1, 2, 4)  # times those of now
WORTH = 0.02  # share of the step that a change has to save


@dataclass(frozen=True)
class Change:
    """Options to set, and the step with this and all changes before it."""

    options: Mapping[str, object]
    seconds: float
    gain: float  # times shorter than without it


@dataclass(frozen=True)
class Proposal:
    """What was found."""

    measured: float | None  # seconds of a step as it was; None where that placement was not run
    present: Plan  # that placement, simulated
    best: Plan
    changes: tuple[Change, ...]
    busy: Mapping[str, float]  # share of the step in which each worker is busy now: measured where it was
    unknown: tuple[str, ...]  # calls and the workers on which they were not measured

    @property
    def bottleneck(self) -> str:
        """The busiest worker now."""
        return busiest(self.busy)

    @property
    def now(self) -> float:
        """Seconds of a step now."""
        return self.present.seconds if self.measured is None else self.measured

    @property
    def seconds(self) -> float:
        """Seconds of the step that is expected: the simulated one, corrected by what the simulation of now is off."""
        return self.best.seconds * self.now / self.present.seconds


def propose(
    graph: Graph,
    config: TrainConfig,
    step: MeasuredStep,
    *,
    size: Mapping[str, float],
    memory: Mapping[str, float],
    others: Sequence[MeasuredStep] = (),
    staleness: Sequence[int] = (),
    probed: Places | None = None,
) -> Proposal:
    """The best placement, size of leases and, of those given, staleness: of each what it adds to the one before.

    A smaller lease is proposed where fewer workers wait for the last one; a lease's own cost (its call, padding) is not
    known from a run with one size, so that one twice as small must save WORTH of the step, and one twice as large may
    not cost any. `probed`: the placement of now, where the steps are those of probes and not of it. Raises PlanError,
    NothingMeasuredError.
    """
    costs = costs_of(graph, step, memory=memory, size=size, others=others)
    places = present_places(graph, step) if probed is None else probed
    present = predicted(replace(costs, memory={}), places, config.staleness)  # it has run, so it fits
    changes: list[Change] = []
    best = plan(costs, config.staleness, places)
    if best.seconds < present.seconds * (1 - WORTH):
        changes.append(_change(placement(costs, places, best.places), present, best))
    else:
        best = present
    costs, best = _leases(costs, config, best, changes)
    for versions in sorted(set(staleness) - {config.staleness}):
        other = plan(costs, versions, best.places)
        if other.seconds < best.seconds * (1 - WORTH):
            moved = placement(costs, best.places, other.places)
            changes.append(_change({"staleness": versions, **moved}, best, other))
            best = other
    seconds, busy = (step.seconds, step.busy) if probed is None else (present.seconds, present.busy)
    shares = {worker: each / seconds for worker, each in busy.items()}
    measured = step.seconds if probed is None else None
    return Proposal(measured, present, best, tuple(changes), shares, _unknown(costs))


def placement(costs: Costs, before: Places, after: Places) -> dict[str, object]:
    """The options of the calls whose workers are others."""
    return {
        f"placement.{call.name}": [f"{WORKER}{worker}" for worker in after[call.name]]
        for call in costs.calls
        if before[call.name] != after[call.name]
    }


def _leases(costs: Costs, config: TrainConfig, best: Plan, changes: list[Change]) -> tuple[Costs, Plan]:
    """The costs and the plan with as many leases as are best for this placement."""
    found, now = (costs, best), best
    for times in LEASES:
        lease = math.ceil(config.batch.lease / times)
        if lease > config.batch.prompts or lease == config.batch.lease:
            continue
        other = replace(costs, leases=max(1, round(costs.leases * config.batch.lease / lease)))
        one = predicted(replace(other, memory={}), now.places, now.staleness)
        if one.seconds < found[1].seconds * (1 - WORTH):
            found = other, one
    if found[1] is not now:
        lease = math.ceil(config.batch.lease * costs.leases / found[0].leases)
        changes.append(_change({"batch.lease": lease}, now, found[1]))
    return found


def _change(options: Mapping[str, object], before: Plan, after: Plan) -> Change:
    return Change(options, after.seconds, before.seconds / after.seconds)


def _unknown(costs: Costs) -> tuple[str, ...]:
    return tuple(
        f"{call.name} on {', '.join(missing)}"
        for call in costs.calls
        if (missing := sorted(set(costs.workers) - set(call.seconds)))
    )
