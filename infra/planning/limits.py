"""What limits a step: what each of some changes would make of it, and the fewest generators that keep the trainer busy.

Steps overlap where staleness allows it, so that in the long run the slowest stage sets the pace (the overlap of ECHO-2,
arXiv 2602.02192): of T seconds a generator has T − f for leases of s seconds each, f its wait for a new version, and

    Σ_w (T − f[w]) / s[w] ≥ leases      T: the trainer's own seconds a step

says how many generators feed a trainer that never waits. Latencies, shared cores and the last lease of a batch are not
in it: what it finds, and each change, is simulated (`infra.planning.simulation`).
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import ceil
from typing import Literal

from infra.planning.costs import Costs, Places, Work
from infra.planning.simulation import simulate

Kind = Literal["worker", "trainer", "link", "staleness"]
TIMES = 2  # as fast is a trainer, or the weights' way, that is tried
SLACK = 0.05  # share of a step that a trainer may wait and is busy all the same
FREE = 0.01  # of its seconds, for work that counts for next to nothing
MOST = 16  # generators more that are looked at
FURTHER = 3  # than what throughput alone asks for, as waits may
DEEPEST = 4  # staleness; more of it changes next to nothing
LEASES, LEASES_PER_WORKER = 16, 2  # of a step, the latter where that is more: enough to simulate it
HALF = 0.5  # of what one version more saves, which another change has to save to be named before it


@dataclass(frozen=True)
class Change:
    """One that was simulated."""

    kind: Kind
    gain: float  # times shorter a step gets
    call: str = ""  # of one more worker: what there are workers for
    worker: str = ""  # the one that it is like, on a machine of its own; the trainer


@dataclass(frozen=True)
class Limits:
    """What was found of a step."""

    seconds: float  # simulated, as things are
    changes: tuple[Change, ...]  # the best one first; a version more of staleness after others that do half as much
    fewest: tuple[str, ...]  # generators that keep the trainer busy; empty where all of them do not
    more: int  # like the first one, beside all of them, that would; 0 where that is not known, or none are needed


def find_limits(costs: Costs, places: Places, staleness: int) -> Limits:
    """Those of the calls as they are placed."""
    widest = max(len(workers) for workers in places.values())
    costs = replace(costs, leases=min(costs.leases, max(LEASES, LEASES_PER_WORKER * widest)))
    now = simulate(costs, places, min(staleness, DEEPEST)).seconds
    changes = []
    for change in _changes(costs, places):
        other, moved, versions = changed(change, costs, places, min(staleness, DEEPEST))
        changes.append(replace(change, gain=now / simulate(other, moved, versions).seconds))
    changes.sort(key=lambda change: -_rank(change, staleness))
    trains = (changes[0].kind, changes[0].call) == ("trainer", "train")
    fewest, more = _fewest(costs, places, staleness, now if trains else 0.0)
    return Limits(now, tuple(changes), fewest, more)


def _rank(change: Change, staleness: int) -> float:
    """Its gain; where steps overlap already, a version more hides what limits them and costs what it is trained on."""
    return 1 + HALF * (change.gain - 1) if change.kind == "staleness" and staleness else change.gain


def with_more(costs: Costs, places: Places, worker: str, count: int = 1) -> tuple[Costs, Places]:
    """Costs and placement with so many more workers like this one, each on a machine of its own: they get what it has,
    but for what one worker does for a whole batch."""
    new = [f"{worker}, {number} more" for number in range(1, count + 1)]
    shared = [call.name for call in costs.calls if call.each == "lease" and worker in places[call.name]]
    calls = tuple(_like(call, worker, new) if call.name in shared else call for call in costs.calls)
    there = costs.cores.get(costs.machine.get(worker, ""))
    own = {} if there is None else dict.fromkeys(new, there)
    return replace(
        costs,
        calls=calls,
        memory={**costs.memory, **{each: costs.memory[worker] for each in new if worker in costs.memory}},
        fetching={
            **costs.fetching,
            **{(held, each): s for (held, at), s in costs.fetching.items() if at == worker for each in new},
        },
        machine={**costs.machine, **{each: each for each in own}},
        cores={**costs.cores, **own},
    ), {name: (*workers, *(new if name in shared else ())) for name, workers in places.items()}


def trainer_seconds(costs: Costs, places: Places, staleness: int) -> float:
    """Seconds of a step whose trainer waits for no other worker, but for cores that other programs take: simulated,
    with next to no work for the others."""
    calls = tuple(
        call
        if places[call.name] == places["train"]
        else replace(call, seconds={worker: FREE * seconds for worker, seconds in call.seconds.items()})
        for call in costs.calls
    )
    waits = {pair: FREE * seconds for pair, seconds in costs.fetching.items()}
    return simulate(replace(costs, calls=calls, fetching=waits), places, min(staleness, DEEPEST)).seconds


def leases_within(costs: Costs, places: Places, worker: str, seconds: float) -> float:
    """How many leases a generator does in so many seconds a step, with all that is made of each by the generators."""
    mine = [call for call in costs.calls if call.each == "lease" and places[call.name] == places["generate"]]
    waits = {call.holds: costs.fetching.get((call.holds, worker), 0.0) for call in mine if call.holds is not None}
    each = sum(call.seconds[worker] for call in mine) / costs.leases
    return max(0.0, seconds - sum(waits.values())) / each if each > 0 else float(costs.leases)


def changed(change: Change, costs: Costs, places: Places, staleness: int) -> tuple[Costs, Places, int]:
    """What this change makes of them."""
    if change.kind == "worker":
        return *with_more(costs, places, change.worker), staleness
    if change.kind == "trainer":
        return _faster(costs, places, (change.worker,)), places, staleness
    if change.kind == "link":
        return _faster_link(costs), places, staleness
    return costs, places, staleness + 1


def _changes(costs: Costs, places: Places) -> Iterator[Change]:
    """All that are tried."""
    seen: set[str] = set()
    for call in costs.calls:
        fastest = min(places[call.name], key=lambda worker, call=call: (call.seconds[worker], worker))  # type: ignore[misc]
        if call.each == "lease" and fastest not in seen and not _alone(places, call):
            seen.add(fastest)
            yield Change("worker", 1.0, call.name, fastest)
    trained = {places[each.name]: each.name for each in costs.calls if each.each == "batch"}
    for (worker,), name in {**trained, places["train"]: "train"}.items():
        yield Change("trainer", 1.0, name, worker)
    if costs.fetching or costs.handing_over > costs.logging:
        yield Change("link", 1.0)
    yield Change("staleness", 1.0)


def _alone(places: Places, call: Work) -> bool:
    """Whether the call runs where the trainer does and nowhere else, as what a critic or a trainer scores: it is part
    of the trainer's work. Not where that trainer generates, too."""
    return places[call.name] == places["train"] != places["generate"]


def _like(call: Work, worker: str, new: list[str]) -> Work:
    seconds = {**call.seconds, **dict.fromkeys(new, call.seconds[worker])}
    return replace(call, seconds=seconds, computing={**call.computing, **dict.fromkeys(new, call.wants(worker))})


def _faster(costs: Costs, places: Places, trainer: tuple[str, ...]) -> Costs:
    """All that this worker alone does takes less, but for leases where it generates, too."""

    def faster(call: Work) -> Work:
        if places[call.name] != trainer or (call.each == "lease" and trainer == places["generate"]):
            return call
        return replace(call, seconds={worker: seconds / TIMES for worker, seconds in call.seconds.items()})

    return replace(costs, calls=tuple(map(faster, costs.calls)))


def _faster_link(costs: Costs) -> Costs:
    return replace(
        costs,
        fetching={pair: seconds / TIMES for pair, seconds in costs.fetching.items()},
        handing_over=max(costs.logging, costs.handing_over / TIMES),
    )


def _fewest(costs: Costs, places: Places, staleness: int, enough: float) -> tuple[tuple[str, ...], int]:
    """See Limits. Not where the trainer waits by design, or generates itself. `enough`: seconds of a step whose trainer
    is busy, as it is; where generators share its cores it is longer than `trainer_seconds`."""
    if staleness == 0 or set(places["train"]) & set(places["generate"]):
        return (), 0
    own = trainer_seconds(costs, places, staleness)
    rate = {worker: leases_within(costs, places, worker, own) for worker in places["generate"]}
    first = sorted(rate, key=lambda worker: (-rate[worker], worker))

    def busy(known: Costs, placed: Places) -> bool:
        return simulate(known, placed, min(staleness, DEEPEST)).seconds <= max(enough, own / (1 - SLACK))

    need = (1 - SLACK) * costs.leases
    for count in range(1, len(first) + 1):
        some = tuple(sorted(first[:count]))
        if sum(rate[worker] for worker in some) >= need:
            shared = [name for name, workers in places.items() if workers == places["generate"]]
            if busy(costs, {**places, **dict.fromkeys(shared, some)}):
                return some, 0
    least = max(1, ceil((need - sum(rate.values())) / rate[first[0]])) if rate[first[0]] else MOST + 1
    for count in range(least, min(least + FURTHER, MOST) + 1):
        if busy(*with_more(costs, places, first[0], count)):
            return (), count
    return (), 0
