"""The placement that makes a step shortest.

With steps that overlap, the busiest worker is what counts. A mixed integer program (HiGHS, by `scipy.optimize.milp`)
finds shares x of each call's work and what each worker holds (y), for the smallest T such that

    Σ_c t[c,w]·x[c,w] + Σ_m f[m,w]·y[m,w] ≤ T     each worker's seconds a step, with those for new weights
    Σ_c,w k[c,w]·t[c,w]·x[c,w] ≤ cores[h]·T       what the workers of a machine compute, k cores at a time
    Σ_w x[c,w] = 1,  x[c,w] ≤ y[m(c),w]           all of the work, where its model is
    Σ_m size[m]·y[m,w] ≤ memory[w]                x ∈ {0, 1} of a call for the whole batch

The cluster knows no shares: its workers pull. So placements are simulated (`infra.planning.simulation`), and the
shortest step counts: the program's, the one of now, and all others where they are few; else those that differ by one
worker from the best one yet. At staleness 0, where one call waits for another, this is list scheduling of the
same candidates.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import combinations, product
from math import prod

from infra.planning.costs import Costs, Places, PlanError, Work, amount, check_costs, listed
from infra.planning.simulation import simulate

MARGIN = 0.005  # a candidate is better by more than this share of the step
FEW = 1000  # placements that are all tried
ROUNDS = 50  # of changes, at most
LEAST = 1e-3  # share of a call's work below which a worker is left out


@dataclass(frozen=True)
class Relaxed:
    """The answer of the mixed integer program."""

    seconds: float  # T: no placement has shorter steps in the long run
    shares: Mapping[str, Mapping[str, float]]  # of each call's work, by worker

    @property
    def places(self) -> Places:
        """The workers that have a share of each call."""
        return {name: tuple(sorted(by)) for name, by in self.shares.items()}


@dataclass(frozen=True)
class Plan:
    """A placement, and what its steps would be like."""

    places: Places
    staleness: int
    seconds: float  # a step
    busy: Mapping[str, float]  # seconds of each worker a step, without those in which it has no core
    computed: Mapping[str, float]  # seconds of its cores that each machine computes a step
    shares: Mapping[str, Mapping[str, float]]  # of each call's work, by worker


def relaxed(costs: Costs) -> Relaxed:
    """The best shares where steps overlap without bound. Raises PlanError where models fit on no worker, or not
    together."""
    import numpy as np
    from scipy.optimize import Bounds, LinearConstraint, milp

    check_costs(costs)
    pairs = [(call, worker) for call in costs.calls for worker in call.seconds]
    held = sorted({(call.holds, worker) for call, worker in pairs if call.holds is not None})
    at = {("x", call.name, worker): 1 + n for n, (call, worker) in enumerate(pairs)}
    at |= {("y", *one): 1 + len(pairs) + n for n, one in enumerate(held)}
    rows: list[tuple[dict[int, float], float, float]] = []  # coefficients, lower and upper bound
    for worker in costs.workers:
        load = {0: -1.0}
        load |= {at["x", call.name, w]: call.seconds[w] for call, w in pairs if w == worker}
        load |= {at["y", one, w]: costs.fetching.get((one, w), 0.0) for one, w in held if w == worker}
        rows.append((load, -np.inf, 0.0))
        if worker in costs.memory:
            kept = {at["y", one, w]: costs.size.get(one, 0.0) / costs.memory[worker] for one, w in held if w == worker}
            rows.append((kept, -np.inf, 1.0))
    for machine, cores in costs.cores.items():
        load = {
            at["x", call.name, w]: call.seconds[w] * call.wants(w)
            for call, w in pairs
            if costs.machine.get(w) == machine
        }
        rows.append(({0: -cores, **load}, -np.inf, 0.0))
    for call in costs.calls:
        rows.append(({at["x", call.name, worker]: 1.0 for worker in call.seconds}, 1.0, 1.0))
    for call, worker in pairs:
        if call.holds is not None:
            rows.append(({at["x", call.name, worker]: 1.0, at["y", call.holds, worker]: -1.0}, -np.inf, 0.0))
    size = 1 + len(at)
    matrix = np.zeros((len(rows), size))
    for row, (coefficients, _, _) in enumerate(rows):
        for column, value in coefficients.items():
            matrix[row, column] = value
    whole = np.zeros(size)
    whole[[at["x", call.name, worker] for call, worker in pairs if call.each == "batch"]] = 1
    whole[1 + len(pairs) :] = 1
    objective = np.zeros(size)
    objective[0] = 1.0
    found = milp(
        objective,
        constraints=LinearConstraint(matrix, [low for _, low, _ in rows], [high for _, _, high in rows]),
        integrality=whole,
        bounds=Bounds(np.zeros(size), np.concatenate([[np.inf], np.ones(size - 1)])),
        options={"mip_rel_gap": 1e-6},
    )
    if found.x is None:
        raise _too_much(costs)
    shares = {
        call.name: {w: float(found.x[at["x", call.name, w]]) for w in sorted(call.seconds)} for call in costs.calls
    }
    return Relaxed(
        float(found.x[0]),
        {name: {w: share for w, share in by.items() if share > LEAST} for name, by in shares.items()},
    )


def predicted(costs: Costs, places: Places, staleness: int) -> Plan:
    """The steps of this placement. Raises PlanError for one with a call that has no worker, or more than one for a
    whole batch, or a worker without the memory."""
    for call in costs.calls:
        workers = places.get(call.name, ())
        if not workers or set(workers) - set(call.seconds) or (call.each == "batch" and len(workers) > 1):
            raise PlanError(f"{call.name} on {listed(workers) if workers else 'no worker'} cannot be planned")
    for worker in costs.workers:
        if (needs := costs.needs(worker, places)) > costs.memory.get(worker, needs):
            held = sorted({call.holds for call in costs.calls if worker in places[call.name] and call.holds})
            raise PlanError(
                f"{listed(held)} ({amount(needs)}) do not fit on {worker}, which has {amount(costs.memory[worker])}"
            )
    found = simulate(costs, places, staleness)
    return Plan(places, staleness, found.seconds, found.busy, found.computed, found.shares)


def plan(costs: Costs, staleness: int, present: Places | None = None) -> Plan:
    """The best placement found; not worse than `present`, and that one where none is better by `MARGIN`. Raises
    PlanError where models fit on no worker, or not together."""
    starts = [relaxed(costs).places, *_extremes(costs)]
    if present is not None and costs.fits(present):
        starts.insert(0, present)
    best = predicted(costs, starts[0], staleness)
    counts = (len(call.seconds) if call.each == "batch" else 2 ** len(call.seconds) - 1 for call in costs.calls)
    few = prod(counts) <= FEW
    for start in _all(costs) if few else starts[1:]:
        best = _better(best, predicted(costs, start, staleness))
    for _ in range(0 if few else ROUNDS):
        before = best
        for places in _changed(costs, before.places):
            best = _better(best, predicted(costs, places, staleness))
        if best is before:
            break
    return best


def _options(call: Work) -> list[tuple[str, ...]]:
    """All workers that it may have."""
    names = sorted(call.seconds)
    return [
        some for count in range(1, 2 if call.each == "batch" else len(names) + 1) for some in combinations(names, count)
    ]


def _all(costs: Costs) -> Iterator[Places]:
    """Every placement that fits."""
    for chosen in product(*map(_options, costs.calls)):
        places = {call.name: workers for call, workers in zip(costs.calls, chosen, strict=True)}
        if costs.fits(places):
            yield places


def _extremes(costs: Costs) -> Iterator[Places]:
    """Each call on its fastest worker, and on all; where that fits."""
    fastest = {call.name: (min(sorted(call.seconds), key=call.seconds.__getitem__),) for call in costs.calls}
    every = {
        call.name: tuple(sorted(call.seconds)) if call.each == "lease" else fastest[call.name] for call in costs.calls
    }
    yield from (places for places in (fastest, every) if costs.fits(places))


def _better(best: Plan, other: Plan) -> Plan:
    return other if other.seconds < best.seconds * (1 - MARGIN) else best


def _changed(costs: Costs, places: Places) -> Iterator[Places]:
    """All placements that fit and differ by one worker: that has a call too, has it no more, or in another's place; and
    those in which two calls trade places."""
    for call in costs.calls:
        for workers in _neighbours(call, places[call.name]):
            if costs.fits(changed := {**places, call.name: workers}):
                yield changed
    for one in costs.calls:
        for other in costs.calls:
            traded = {**places, one.name: places[other.name], other.name: places[one.name]}
            may = one.name < other.name and all(_may(call, traded[call.name]) for call in (one, other))
            if may and costs.fits(traded):
                yield traded


def _neighbours(call: Work, workers: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    others = sorted(set(call.seconds) - set(workers))
    if call.each == "lease":
        yield from (tuple(sorted((*workers, new))) for new in others)
        if len(workers) > 1:
            yield from (tuple(w for w in workers if w != old) for old in workers)
    for old in workers:
        yield from (tuple(sorted({*workers, new} - {old})) for new in others)


def _may(call: Work, workers: tuple[str, ...]) -> bool:
    return set(workers) <= set(call.seconds) and (call.each == "lease" or len(workers) == 1)


def _too_much(costs: Costs) -> PlanError:
    """The error where each model fits on a worker of its own, and all do not fit on those that there are."""
    held = {call.holds: sorted(call.seconds) for call in costs.calls if call.holds is not None}
    limited = {worker: costs.memory[worker] for worker in costs.workers if worker in costs.memory}
    largest = max(held, key=lambda one: costs.size.get(one, 0.0))
    room = ", ".join(f"{worker} {amount(limited[worker])}" for worker in held[largest] if worker in limited)
    sizes = ", ".join(f"{one} {amount(costs.size.get(one, 0.0))}" for one in sorted(held))
    return PlanError(f"the models do not fit together ({sizes}) on the workers that may hold them ({room})")
