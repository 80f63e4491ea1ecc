"""How much of what waits a worker should have, so that all workers end at once.

A guided self-scheduling (Polychronopoulos and Kuck, IEEE Transactions on Computers 36, 1987), weighted by what items
cost each worker (Hummel et al., SPAA 1996).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import ceil, floor

from infra.dispatch.speeds import Cost

SOONER = 0.8  # of its own time, in which others have done what a worker leaves to them
ROUNDING = 1e-6  # of a unit
REST = 0.05  # of a part that may be left over and is no item of its own: it is done too


@dataclass(frozen=True)
class Sizes:
    """Into what items are cut."""

    first: int  # units, at most, for a worker of which nothing is known
    seconds: float  # that one should take


@dataclass(frozen=True)
class Free:
    """A worker as it will be."""

    start: float  # seconds from now until it can have begun an item
    each: float  # seconds of a unit from then on


def ends(units: float, workers: Iterable[Free]) -> float:
    """Seconds until these have done so many units, shared so that all end at once; infinity of nobody."""
    at, done, rate = float("inf"), 0.0, 0.0
    for worker in sorted(workers, key=lambda worker: worker.start):
        if rate and at + (units - done) / rate <= worker.start:
            break
        done += rate * (worker.start - at) if rate else 0.0
        at, rate = worker.start, rate + 1 / worker.each
    return at + (units - done) / rate if rate else at


def share(ahead: int, mine: Cost, others: Sequence[Free], seconds: float) -> int:
    """Units that a worker should have of `ahead`, all that waits up to the end of a batch: its part of them, and no
    more than it does in so many seconds. Where most of that time would not depend on its size it is larger, if others
    alone would take as long. At least 1."""
    part = mine.units(ends(ahead, [*others, Free(mine.fixed, mine.each)]))
    units = max(1, floor(min(part, mine.units(seconds)) + ROUNDING))
    units = ahead if ahead <= (1 + REST) * units else units
    worth = min(ceil(mine.half), ahead)
    return worth if units < worth and mine.seconds(worth) <= ends(ahead, others) else units


def is_sooner(ahead: int, least: int, others: Sequence[Free], seconds: float) -> bool:
    """Whether others will have done all that is `ahead`, in items of `least` units, when a worker that begins now is
    far from the end of an item that takes it so many seconds."""
    if not others:
        return False
    first = min(other.start + least * other.each for other in others)
    return max(first, ends(ahead, others)) <= SOONER * seconds
