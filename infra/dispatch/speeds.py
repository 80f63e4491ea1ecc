"""What an item costs each worker, from what its last ones took.

What is cut into units, such as prompts, takes a · steps + b · tokens seconds: a lease of half as many rows takes as
many steps, so more than half as long. a and b are the least squares of relative errors over a worker's last items; what
steps take is 0 as long as all were of one size, which then changes, so that they are told apart. Steps of an item and
tokens of a unit are the mean over those that came back lately, from whichever worker.
"""

from collections import Counter, defaultdict, deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass

RECENT = 8  # items of a worker, a newer one of which counts no more than an older one
LENGTHS = 32  # items of all that lengths are taken from
OVERHEAD = 0.02  # seconds of an item beside its call: handing out, the way there and back
RIDGE = 0.01  # of the share of steps: what is not told apart counts as tokens
LEAST = 1e-9  # seconds of a unit


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


class Speeds:
    """Of the workers of one call. Their first items, which import, load and compile, count until there is another."""

    def __init__(self) -> None:
        self._took: defaultdict[str, deque[tuple[Made, float]]] = defaultdict(lambda: deque(maxlen=RECENT))
        self._fit: dict[str, tuple[float, float]] = {}  # seconds of a step and of a token
        self._count: Counter[str] = Counter()  # items of each worker
        self._whole: deque[tuple[int, Made]] = deque(maxlen=LENGTHS)  # units, and all that was made of them
        self._steps = self._tokens = 0.0  # of an item, of a unit

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

    def over(self, units: int, made: Made) -> None:
        """An item of so many units is done: what was made of it in all."""
        self._whole.append((units, made))
        self._steps = sum(made.steps for _, made in self._whole) / len(self._whole)
        self._tokens = sum(made.tokens for _, made in self._whole) / sum(units for units, _ in self._whole)

    def keep(self, workers: Collection[str]) -> None:
        """Forget all others."""
        for known in (self._took, self._fit, self._count):
            for gone in known.keys() - workers:
                del known[gone]

    @property
    def knows_any(self) -> bool:
        """Whether anything was measured."""
        return bool(self._whole)

    def knows(self, worker: str) -> bool:
        """Whether the worker has done more than its first item."""
        return self._count[worker] > 1

    def cost(self, worker: str) -> Cost | None:
        """What an item costs this worker; None where nothing is known."""
        if worker not in self._fit or not self._whole:
            return None
        step, token = self._fit[worker]
        return Cost(OVERHEAD + step * self._steps, max(LEAST, token * self._tokens))

    def costs(self, workers: Iterable[str]) -> dict[str, Cost]:
        """What an item costs each of them: those of which nothing is known are like the mean of the others; {} where
        nothing is known of any."""
        found = {worker: self.cost(worker) for worker in workers}
        known = [cost for cost in found.values() if cost is not None]
        if not known:
            return {}
        fixed, rate = (sum(column) / len(known) for column in zip(*((c.fixed, 1 / c.each) for c in known), strict=True))
        return {worker: cost or Cost(fixed, 1 / rate) for worker, cost in found.items()}


def fit(took: Iterable[tuple[Made, float]]) -> tuple[float, float]:
    """Seconds of a step and of a token, both at least 0."""
    shares = [(made.steps / seconds, made.tokens / seconds) for made, seconds in took]
    x, y = (sum(column) for column in zip(*shares, strict=True))
    xx, yy, xy = (
        sum(s * s for s, _ in shares) * (1 + RIDGE),
        sum(t * t for _, t in shares),
        sum(s * t for s, t in shares),
    )
    rest = xx * yy - xy * xy
    step, token = ((x * yy - y * xy) / rest, (y * xx - x * xy) / rest) if rest > 0 else (0.0, -1.0)
    if step >= 0 and token >= 0:
        return step, token
    return (0.0, y / yy) if step < 0 or xx == 0 else (x / xx, 0.0)
