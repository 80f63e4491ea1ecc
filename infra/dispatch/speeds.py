"""What an item costs each worker, from what its last ones took.

What is cut into units, such as prompts, takes a · steps + b · tokens seconds: a lease of half as many rows takes as
many steps, so more than half as long. a and b are the least squares of relative errors over a worker's last items; what
steps take is 0 as long as all were of one size, which then changes, so that they are told apart. Steps of an item and
tokens of a unit are the mean over those that came back lately, from whichever worker.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

RECENT = 8  # items of a worker, a newer one of which counts no more than an older one
LENGTHS = 32  # items of all that lengths are taken from
OVERHEAD = 0.02  # seconds of an item beside its call: handing out, the way there and back
RIDGE = 0.01  # of the share of steps: what is not told apart counts as tokens
LEAST = 1e-9  # seconds of a unit
PART = 0.1  # of what tokens would take if steps took nothing, that they take at least: times are noisy, sizes alike
SLOW = 4.0  # times what is expected of an item, above which it counts less
GROWTH = 2  # times the largest of its last items, that a worker's next one is at most: nothing is known of larger ones


@dataclass(frozen=True)
class Made:
    """What a call has made of an item."""

    steps: float  # one after the other
    tokens: float


@dataclass(frozen=True)
class Cost:
    """Seconds of an item on one worker."""

    fixed: float  # whatever its size
    each: float  # of a unit

    def seconds(self, units: float) -> float:
        """Of so many units."""
        return self.fixed + units * self.each

    def units(self, seconds: float) -> float:
        """That are done in so many seconds, by one item."""
        return (seconds - self.fixed) / self.each

    @property
    def half(self) -> float:
        """Units below which most of the seconds are fixed (n½: Hockney, Parallel Computing 17, 1991)."""
        return self.fixed / self.each


@dataclass(frozen=True)
class Costs:
    """What an item costs each of some workers, in their order."""

    place: Mapping[str, int]  # of a worker
    fixed: NDArray[np.float64]
    each: NDArray[np.float64]

    def of(self, worker: str) -> Cost:
        """What it costs this one."""
        at = self.place[worker]
        return Cost(float(self.fixed[at]), float(self.each[at]))


class Speeds:
    """Of the workers of one call. Their first items, which import, load and compile, count until there is another."""

    def __init__(self) -> None:
        self._took: defaultdict[str, deque[tuple[Made, float]]] = defaultdict(lambda: deque(maxlen=RECENT))
        self._fit: dict[str, tuple[float, float]] = {}  # seconds of a step and of a token
        self._count: Counter[str] = Counter()  # items of each worker
        self._whole: deque[tuple[int, Made]] = deque(maxlen=LENGTHS)  # units, and all that was made of them
        self._units: defaultdict[str, deque[int]] = defaultdict(lambda: deque(maxlen=RECENT))  # of its items
        self._steps = self._tokens = 0.0  # of an item, of a unit
        self._asked: list[str] | None = None  # the workers that costs were last asked of
        self._place: dict[str, int] = {}  # of each of them
        self._fits = np.empty((0, 2))  # of theirs

    def add(self, worker: str, made: Made, seconds: float) -> None:
        """The worker has made this in so many seconds, without waits for weights. Where it made nothing, as when what
        was observed leaves a completion no room, that says nothing of its speed."""
        if seconds <= 0 or not (made.steps or made.tokens):
            return
        if self._count[worker] == 1:
            self._took[worker].clear()
        self._took[worker].append((made, seconds))
        self._fit[worker] = fit(self._took[worker])
        self._count[worker] += 1
        if worker in self._place:
            self._fits[self._place[worker]] = self._fit[worker]

    def anew(self, worker: str, made: Made, seconds: float) -> None:
        """The same of an item that another was sooner with, or should have been: the worker is slower than it was, or
        has loaded for long. Until there is another, this is all that counts; that of which it happens twice is slow."""
        if seconds > 0 and (made.steps or made.tokens):
            self._took[worker].clear()
            if self._count[worker] > 1:
                self._count[worker] = 0
            self.add(worker, made, seconds)

    def over(self, worker: str, units: int, made: Made) -> None:
        """The worker has ended an item of so many units: what was made of it in all."""
        self._units[worker].append(units)
        self._whole.append((units, made))
        self._steps = sum(made.steps for _, made in self._whole) / len(self._whole)
        self._tokens = sum(made.tokens for _, made in self._whole) / sum(units for units, _ in self._whole)

    def keep(self, workers: Collection[str]) -> None:
        """Forget all others."""
        for known in (self._took, self._fit, self._count, self._units):
            for gone in known.keys() - workers:
                del known[gone]
                self._asked = None

    @property
    def knows_any(self) -> bool:
        """Whether anything was measured."""
        return bool(self._whole)

    def knows(self, worker: str) -> bool:
        """Whether the worker has done more than its first item."""
        return self._count[worker] > 1

    def most(self, worker: str) -> int:
        """Units that an item of this worker has at most; 0 where nothing is known."""
        return GROWTH * max(self._units.get(worker, ()), default=0)

    def cost(self, worker: str) -> Cost | None:
        """What an item costs this worker; None where nothing is known."""
        if worker not in self._fit or not self._whole:
            return None
        step, token = self._fit[worker]
        return Cost(OVERHEAD + step * self._steps, max(LEAST, token * self._tokens))

    def costs(self, workers: Sequence[str]) -> Costs | None:
        """What an item costs each of them: those of which nothing is known are like the mean of the others; None where
        nothing is known of any."""
        if not self._whole:
            return None
        if self._asked != workers:
            self._asked, self._place = list(workers), {worker: at for at, worker in enumerate(workers)}
            self._fits = np.array([self._fit.get(worker, (np.nan, np.nan)) for worker in workers]).reshape(-1, 2)
        fixed = OVERHEAD + self._fits[:, 0] * self._steps
        each = np.maximum(LEAST, self._fits[:, 1] * self._tokens)
        known = ~np.isnan(fixed)
        if not known.any():
            return None
        fixed[~known], each[~known] = fixed[known].mean(), 1 / (1 / each[known]).mean()
        return Costs(self._place, fixed, each)


def fit(took: Sequence[tuple[Made, float]]) -> tuple[float, float]:
    """Seconds of a step and of a token: least squares of errors relative to what is expected, so that a slow item
    counts as much as a fast one. What took more than SLOW times as long, as on a machine that slept, counts less."""
    step, token = relative_fit(took, [1.0] * len(took))
    expected = [step * made.steps + token * made.tokens for made, _ in took]
    weights = [(seconds / max(mean, seconds / SLOW)) ** 2 for mean, (_, seconds) in zip(expected, took, strict=True)]
    return relative_fit(took, weights)


def relative_fit(took: Sequence[tuple[Made, float]], weights: Sequence[float]) -> tuple[float, float]:
    """The same, of weighted errors relative to what items took: of a step at least 0, of a token at least PART of what
    it would be without steps."""
    shares = [
        (made.steps / seconds, made.tokens / seconds, w) for (made, seconds), w in zip(took, weights, strict=True)
    ]
    x, y = sum(w * s for s, _, w in shares), sum(w * t for _, t, w in shares)
    xx, yy, xy = (
        sum(w * s * s for s, _, w in shares) * (1 + RIDGE),
        sum(w * t * t for _, t, w in shares),
        sum(w * s * t for s, t, w in shares),
    )
    rest = xx * yy - xy * xy
    step, token = ((x * yy - y * xy) / rest, (y * xx - x * xy) / rest) if rest > 0 else (0.0, 0.0)
    least = PART * y / yy if yy else 0.0
    if step >= 0 and token >= least:
        return step, token
    return (0.0, y / yy) if step < 0 or xx == 0 else (max(0.0, (x - least * xy) / xx), least)
