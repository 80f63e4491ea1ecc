"""What a lease takes by its size: so many seconds whatever that is, and so many for each token.

A decoding step of half as many completions takes more than half as long, so a worker's leases cannot be compared by
their tokens alone where they differ in size: it takes rate · (h + n) seconds for n tokens. h, the size at which half of
the seconds are fixed (n½: Hockney, Parallel Computing 17, 1991), makes the squared errors of log seconds least; first
that of all workers together, from which a worker's own differs as far as its leases say so.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean

APART = 2.0  # times as large as the smallest is the largest lease that tells what size does
STEPS = 60  # sizes that are tried for h, evenly by their logarithm
LEAST, MOST = 0.01, 10.0  # times the smallest lease, and the largest one
USUAL = log(2.0)  # by which log h usually differs between workers: a standard deviation
NOISE = 1e-4  # of log seconds, at least: a variance


@dataclass(frozen=True)
class Timed:
    """A lease that was measured."""

    tokens: float
    seconds: float  # without waits


def fixed_tokens(timed: Mapping[str, Sequence[Timed]]) -> dict[str, float]:
    """h of each worker, in tokens; 0 where no worker's leases differ enough in size."""
    told = {worker: [one for one in leases if one.tokens > 0 and one.seconds > 0] for worker, leases in timed.items()}
    apart = {worker: leases for worker, leases in told.items() if _differ(leases)}
    if not apart:
        return dict.fromkeys(timed, 0.0)
    sizes = [one.tokens for leases in apart.values() for one in leases]
    first, last = log(LEAST * min(sizes)), log(MOST * max(sizes))
    tried = [exp(first + (last - first) * n / (STEPS - 1)) for n in range(STEPS)]
    common = min(tried, key=_errors(list(apart.values())))
    noise = max(NOISE, _errors(list(apart.values()))(common) / max(1, len(sizes) - len(apart)))

    def own(leases: Sequence[Timed]) -> float:
        errors = _errors([leases])
        return min(tried, key=lambda h: errors(h) / noise + (log(h / common) / USUAL) ** 2)

    return {worker: own(apart[worker]) if worker in apart else common for worker in timed}


def _differ(leases: Sequence[Timed]) -> bool:
    sizes = [one.tokens for one in leases]
    return len(sizes) > 1 and max(sizes) >= APART * min(sizes)


def _errors(by_worker: Sequence[Sequence[Timed]]) -> Callable[[float], float]:
    """The squared errors for an h, each worker having a rate of its own."""

    def errors(h: float) -> float:
        return sum(_spread([log(one.seconds / (h + one.tokens)) for one in leases]) for leases in by_worker)

    return errors


def _spread(values: Sequence[float]) -> float:
    middle = fmean(values)
    return sum((value - middle) ** 2 for value in values)
