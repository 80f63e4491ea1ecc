"""How much of what waits a worker should have, so that all workers end at once.

A guided self-scheduling (Polychronopoulos and Kuck, IEEE Transactions on Computers 36, 1987), weighted by what items
cost each worker (Hummel et al., SPAA 1996).
"""

from dataclasses import dataclass
from math import ceil, floor

import numpy as np
from numpy.typing import NDArray

from infra.dispatch.speeds import Cost

SOONER = 0.8  # of its own time, in which others have done what a worker leaves to them
ROUNDING = 1e-6  # of a unit
REST = 0.05  # of a part that may be left over and is no item of its own: it is done too


@dataclass(frozen=True)
class Sizes:
    """Into what items are cut."""

    first: int  # units, at most, for a worker of which nothing is known
    seconds: float  # that one should take


class Pool:
    """Workers, by their places in two arrays, that do what waits so that all end at once."""

    def __init__(self, starts: NDArray[np.float64], each: NDArray[np.float64]) -> None:
        """Seconds from now until each can have begun an item, infinity of one that does nothing; and of a unit from
        then on."""
        self._start, self._each = starts.copy(), each
        self._order()

    def _order(self) -> None:
        order = np.argsort(self._start, kind="stable")[: np.isfinite(self._start).sum()]  # whoever can begin first
        self._place = np.full(len(self._start), len(order))  # in that order
        self._place[order] = np.arange(len(order))
        self._starts = self._start[order]
        # of all up to each of them: units a second, and units that they would have done by now from their starts on
        rates = 1 / self._each[order]
        self._rates, self._before = np.cumsum(rates), np.cumsum(self._starts * rates)

    def moved(self, worker: int, start: float) -> None:
        """This worker can begin another time."""
        self._start[worker] = start
        self._order()

    def ends(self, units: float, without: int | None = None) -> float:
        """Seconds until they have done so many units, without one of them; infinity of nobody."""
        rates, before = self._rates, self._before
        if without is not None and (at := self._place[without]) < len(self._starts):
            rate = 1 / self._each[without]
            rates, before = rates.copy(), before.copy()
            rates[at:] -= rate
            before[at:] -= self._starts[at] * rate
        if not len(rates):
            return float("inf")
        done = self._starts[1:] * rates[:-1] - before[:-1]  # when each of them but the first can begin
        last = int(np.searchsorted(done, units))  # who can before the end
        return float((units + before[last]) / rates[last]) if rates[last] > 0 else float("inf")

    def soonest(self, units: int, without: int) -> float:
        """Seconds until one of them, but not this one, has done so many units; infinity of nobody."""
        each = self._start + units * self._each
        each[without] = np.inf
        return float(each.min())


def share(ahead: int, mine: Cost, pool: Pool, worker: int, seconds: float) -> int:
    """Units that a worker should have of `ahead`, all that waits up to the end of a batch: its part of what all in the
    pool do, and no more than it does in so many seconds. Where most of that time would not depend on its size it is
    larger, if others alone would take as long. At least 1."""
    part = mine.units(pool.ends(ahead))
    units = max(1, floor(min(part, mine.units(seconds)) + ROUNDING))
    units = ahead if ahead <= (1 + REST) * units else units
    worth = min(ceil(mine.half), ahead)
    return worth if units < worth and mine.seconds(worth) <= pool.ends(ahead, without=worker) else units


def is_sooner(ahead: int, least: int, pool: Pool, worker: int, seconds: float) -> bool:
    """Whether others will have done all that is `ahead`, in items of `least` units, when a worker that begins now is
    far from the end of an item that takes it so many seconds."""
    return max(pool.soonest(least, without=worker), pool.ends(ahead, without=worker)) <= SOONER * seconds
