"""Where a run's calls should run: the plan, why, and the options that do it."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from flows.config import TrainConfig
from flows.planner.calls import Tags, able
from flows.planner.measured import MeasuredStep, costs_of, present_places
from infra.cluster.placement import WORKER
from infra.planning.costs import Costs, Places, Work, listed
from infra.planning.plan import Plan, plan, predicted

LEASES = (0.5, 1, 2, 4)  # times those of now
LOADED = 0.1  # share of a machine's cores that others may want before it is said
WORTH = 0.02  # share of the step that a change has to save
OTHERS = "other programs"


@dataclass(frozen=True)
class Recommendation:
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
    changes: tuple[Recommendation, ...]
    busy: Mapping[str, float]  # share of the step in which each worker, and a machine's cores, are busy now, by name
    then: Mapping[str, float]  # the same of the plan
    lost: float  # share of the step now that it is longer by other programs, simulated
    lost_then: float  # the same of the plan
    leases: int  # a step, of the plan
    lease: int | None  # problems in one; None where each worker has a size of its own
    load: tuple[str, ...]  # machines whose cores other programs wanted, in words
    unknown: tuple[str, ...]  # calls and the workers on which they were not measured

    @property
    def now(self) -> float:
        """Seconds of a step now."""
        return self.present.seconds if self.measured is None else self.measured

    @property
    def seconds(self) -> float:
        """Seconds of the step that is expected: the simulated one, corrected by what the simulation of now is off."""
        return self.best.seconds * self.now / self.present.seconds

    @property
    def bottleneck(self) -> str:
        """What limits the step now."""
        return _limiting(self.busy, self.lost)

    @property
    def bottleneck_then(self) -> str:
        """What limits the step of the plan."""
        return _limiting(self.then, self.lost_then)


def propose(
    calls: Iterable[Work],
    config: TrainConfig,
    step: MeasuredStep,
    *,
    size: Mapping[str, float],
    memory: Mapping[str, float],
    others: Sequence[MeasuredStep],
    staleness: Sequence[int],
    tags: Tags | None,
    probed: Places | None,
) -> Proposal:
    """The best placement, size of leases and, of those given, staleness: of each what it adds to the one before.

    A smaller lease is proposed where fewer workers wait for the last one; a lease's own cost (its call, padding) is not
    known from a run with one size, so that one twice as small must save WORTH of the step, and one twice as large may
    not cost any. `tags`: of the workers, for what is unknown of them. `probed`: the placement of now, where
    the steps are those of probes and not of it; workers of which nothing is known are left out of it. Raises PlanError,
    NothingMeasuredError.
    """
    calls = tuple(calls)
    costs = costs_of(calls, step, memory=memory, size=size, others=others, cut=config.lease.seconds > 0)
    places = present_places(calls, step) if probed is None else _known(costs, probed)
    present = predicted(replace(costs, memory={}), places, config.staleness)  # it has run, so it fits
    lost = _lost(costs, present)
    changes: list[Recommendation] = []
    best = plan(costs, config.staleness, places)
    if best.seconds < present.seconds * (1 - WORTH):
        changes.append(_change(placement(costs, places, best.places), present, best))
    else:
        best = present
    costs, best, lease = _leases(costs, config, best, changes)
    for versions in sorted(set(staleness) - {config.staleness}):
        other = plan(costs, versions, best.places)
        if other.seconds < best.seconds * (1 - WORTH):
            moved = placement(costs, best.places, other.places)
            changes.append(_change({"staleness": versions, **moved}, best, other))
            best = other
    measured = step.seconds if probed is None else None
    return Proposal(
        measured,
        present,
        best,
        tuple(changes),
        _shares(costs, step if probed is None else present),
        _shares(costs, best),
        lost,
        _lost(costs, best),
        costs.leases,
        None if costs.cut and best.staleness else lease,
        load_in_words(costs),
        _unknown(costs, tags or {}),
    )


def _limiting(busy: Mapping[str, float], lost: float) -> str:
    """The one with the greatest share; OTHERS where theirs is greater."""
    name = max(sorted(busy), key=busy.__getitem__)
    return OTHERS if lost > busy[name] else name


def _lost(costs: Costs, step: Plan) -> float:
    """The share of this step that it would save to have the cores alone."""
    alone = predicted(replace(costs, memory={}, others={}), step.places, step.staleness)
    return 1 - alone.seconds / step.seconds


def placement(costs: Costs, before: Places, after: Places) -> dict[str, object]:
    """The options of the calls whose workers are others."""
    return {
        f"placement.{call.name}": [f"{WORKER}{worker}" for worker in after[call.name]]
        for call in costs.calls
        if before[call.name] != after[call.name]
    }


def _leases(costs: Costs, config: TrainConfig, best: Plan, changes: list[Recommendation]) -> tuple[Costs, Plan, int]:
    """The costs and the plan with leases of the size that is best for this placement, and that size."""
    found = costs, best, config.batch.lease
    if costs.cut and best.staleness:
        return found
    for times in LEASES:
        lease = math.ceil(config.batch.lease / times)
        if lease > config.batch.prompts or lease == config.batch.lease:
            continue
        other = replace(costs, leases=max(1, round(costs.leases * config.batch.lease / lease)))
        one = predicted(replace(other, memory={}), best.places, best.staleness)
        if one.seconds < found[1].seconds * (1 - WORTH):
            found = other, one, lease
    if found[1] is not best:
        changes.append(_change({"batch.lease": found[2]}, best, found[1]))
    return found


def _shares(costs: Costs, step: MeasuredStep | Plan) -> dict[str, float]:
    """The share of the step in which each worker is busy, and those cores that several share."""
    shares = {worker: seconds / step.seconds for worker, seconds in step.busy.items()}
    for machine, cores in costs.cores.items():
        if len(workers := costs.sharing(machine)) > 1:
            shares[f"the cores of {listed(workers)}"] = step.computed.get(machine, 0.0) / (cores * step.seconds)
    return shares


def load_in_words(costs: Costs) -> tuple[str, ...]:
    """A line of each machine whose cores other programs wanted."""
    return tuple(
        f"other programs wanted {costs.others[machine]:.2g} cores beside {listed(workers)}, which share {cores:g}"
        for machine, cores in costs.cores.items()
        if costs.others.get(machine, 0.0) > LOADED * cores and (workers := costs.sharing(machine))
    )


def _change(options: Mapping[str, object], before: Plan, after: Plan) -> Recommendation:
    return Recommendation(options, after.seconds, before.seconds / after.seconds)


def _known(costs: Costs, places: Places) -> Places:
    return {call.name: tuple(w for w in places[call.name] if w in call.seconds) for call in costs.calls}


def _unknown(costs: Costs, tags: Tags) -> tuple[str, ...]:
    return tuple(
        f"{call.name} on {', '.join(missing)}"
        for call in costs.calls
        if (missing := sorted(set(able(call.name, tags) if tags else costs.workers) - set(call.seconds)))
    )
