"""What a lease takes by its size: so many seconds whatever that is, and so many for each token.

A decoding step of half as many completions takes more than half as long, so a worker's leases cannot be compared by
their tokens alone where they differ in size: it takes rate · (h + n) seconds for n tokens. h, the size at which half of
the seconds are fixed (n½: Hockney, Parallel Computing 17, 1991), makes the squared errors of log seconds least.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import exp, log
from statistics import fmean

APART = 2.0  # times as large as the smallest is the largest lease that tells what size does
STEPS = 60  # sizes that are tried for h, evenly by their logarithm
LEAST, MOST = 0.01, 10.0  # times the smallest lease, and the largest one


@dataclass(frozen=True)
class Timed:
    """A lease that was measured."""

    tokens: float
    seconds: float  # without waits


def fixed_tokens(timed: Mapping[str, Sequence[Timed]]) -> dict[str, float]:
    """h of each worker, in tokens: from its own leases where they differ enough in size, else from those of all workers
    whose leases do; 0 where none do."""
    told = {worker: [one for one in leases if one.tokens > 0 and one.seconds > 0] for worker, leases in timed.items()}
    apart = {worker: leases for worker, leases in told.items() if _differ(leases)}
    of_all = _least(list(apart.values()))
    return {worker: _least([apart[worker]]) if worker in apart else of_all for worker in timed}


def _differ(leases: Sequence[Timed]) -> bool:
    sizes = [one.tokens for one in leases]
    return len(sizes) > 1 and max(sizes) >= APART * min(sizes)


def _least(by_worker: Sequence[Sequence[Timed]]) -> float:
    """The h with the least errors, each worker having a rate of its own."""
    sizes = [one.tokens for leases in by_worker for one in leases]
    if not sizes:
        return 0.0
    first, last = log(LEAST * min(sizes)), log(MOST * max(sizes))
    tried = [0.0, *(exp(first + (last - first) * n / (STEPS - 1)) for n in range(STEPS))]

    def error(h: float) -> float:
        return sum(_spread([log(one.seconds / (h + one.tokens)) for one in leases]) for leases in by_worker)

    return min(tried, key=error)


def _spread(values: Sequence[float]) -> float:
    middle = fmean(values)
    return sum((value - middle) ** 2 for value in values)
