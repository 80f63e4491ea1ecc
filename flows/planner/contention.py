"""Workers that share the cores of a machine with each other and with other programs, as a run's timeline shows."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from infra.cluster.timeline import Span
from infra.planning.fair_share import rates

NEWEST = 2000  # spans that are looked at
JITTER = 0.02  # share of a call that it may wait for a core where nobody else computes
MOST = 64.0  # cores that other programs may want
ROUNDS = 20  # of halving what is not known


@dataclass(frozen=True)
class Machine:
    """A machine of workers."""

    name: str
    cores: float


def own_seconds(span: Span) -> float:
    """What it took without waits for weights and for a core."""
    return max(0.0, span.end - span.start - span.loading - span.delayed)


def wanted(spans: Sequence[Span]) -> float:
    """The cores that these calls of one kind used when they had them; one where that is not known."""
    own, computing = sum(map(own_seconds, spans)), sum(span.computing for span in spans)
    return computing / own if own and computing else 1.0


def load(spans: Sequence[Span], machine: Mapping[str, Machine]) -> dict[str, float]:
    """The cores of each machine that other programs want: with them, calls beside each other would have waited as long
    for a core as they did. 0 where they waited for none, or the system does not tell."""
    by_machine: dict[Machine, list[Span]] = defaultdict(list)
    for span in spans[-NEWEST:]:
        if span.worker in machine:
            by_machine[machine[span.worker]].append(span)
    return {at.name: _others(at.cores, together) for at, together in by_machine.items()}


def _others(cores: float, spans: Sequence[Span]) -> float:
    """A call's wait counts by the call's length: short calls wait mostly as they begin, beside the programs of the run
    that hand them over, which compute little at other times."""
    alike: dict[tuple[str, str], list[Span]] = defaultdict(list)
    for span in spans:
        alike[span.worker, span.call].append(span)
    wanted_by = {pair: min(cores, wanted(each)) for pair, each in alike.items()}
    beside = list(_beside(spans, wanted_by))
    seconds = [span.end - span.start for span in spans]
    waited = sum(took * (span.delayed - JITTER * took) for took, span in zip(seconds, spans, strict=True))

    def explained(others: float) -> float:
        waits = _waits(beside, cores, others)
        return sum(took * waits[at] for at, took in enumerate(seconds))

    least, most = 0.0, MOST
    if explained(least) >= waited:
        return least
    for _ in range(ROUNDS):
        middle = (least + most) / 2
        least, most = (middle, most) if explained(middle) < waited else (least, middle)
    return most


def _beside(
    spans: Sequence[Span], wanted_by: Mapping[tuple[str, str], float]
) -> Iterator[tuple[float, dict[str, int], dict[str, float]]]:
    """Seconds, and the span of each worker in them and the cores that it wants."""
    moments = sorted(
        [(span.start, True, at) for at, span in enumerate(spans)]
        + [(span.end, False, at) for at, span in enumerate(spans)]
    )
    running: dict[str, int] = {}
    before = 0.0
    for moment, begins, at in moments:
        if running and moment > before:
            yield moment - before, dict(running), {w: wanted_by[w, spans[n].call] for w, n in running.items()}
        before, worker = moment, spans[at].worker
        if begins:
            running[worker] = at
        elif running.get(worker) == at:
            del running[worker]


def _waits(
    beside: Sequence[tuple[float, Mapping[str, int], Mapping[str, float]]], cores: float, others: float
) -> Mapping[int, float]:
    """Seconds that each span would have waited for a core."""
    waits: dict[int, float] = defaultdict(float)
    for seconds, running, wants in beside:
        for worker, pace in rates(wants, cores, others).items():
            waits[running[worker]] += seconds * (1 - pace)
    return waits
