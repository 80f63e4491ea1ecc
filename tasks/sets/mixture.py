"""Draws from several problem sets, each chosen with its weight."""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from threading import Lock

import numpy as np

from rl.records import Problem

STREAM = (3,)  # keeps the draws among sets apart from others with the same seed

Draw = Callable[[int, int, int], list[Problem]]  # (step, how many, how many of the step's to skip)


@dataclass(frozen=True)
class Source:
    """Where the problems of one set come from.

    ``draw(step, position, own, count, skip)`` returns `count` problems of the set in a step, after its first `skip`.
    The step's first `own` replace no others; `position` such were drawn in the steps before.
    """

    weight: float
    draw: Callable[[int, int, int, int, int], list[Problem]]


class Mixture:
    """Draws from several sets, each chosen with its weight; which ones at a step depends on (seed, step) alone. Safe to
    ask from several threads."""

    def __init__(self, sources: Sequence[Source], seed: int, prompts: int) -> None:
        weights = [source.weight for source in sources]
        self._sources, self._seed, self._prompts = sources, seed, prompts
        self._shares = np.cumsum(weights) / np.sum(weights)
        self._before = [Counter[int]()]  # by step: how many of each set the steps before it drew at first
        self._lock = Lock()

    def __call__(self, step: int, count: int, skip: int) -> list[Problem]:
        chosen = self._chosen(step, max(self._prompts, skip + count))
        own, before, now = (
            Counter(part) for part in (chosen[: self._prompts], chosen[:skip], chosen[skip : skip + count])
        )
        past = self._drawn_before(step)
        drawn = {
            each: iter(self._sources[each].draw(step, past[each], own[each], now[each], before[each])) for each in now
        }
        return [next(drawn[each]) for each in chosen[skip : skip + count]]

    def _chosen(self, step: int, count: int) -> list[int]:
        """The sets of a step's first problems."""
        if len(self._sources) == 1:
            return [0] * count
        generator = np.random.default_rng(np.random.SeedSequence([self._seed, step], spawn_key=STREAM))
        found: list[int] = np.searchsorted(self._shares[:-1], generator.random(count), side="right").tolist()
        return found

    def _drawn_before(self, step: int) -> Counter[int]:
        if len(self._sources) == 1:
            return Counter({0: step * self._prompts})
        with self._lock:
            while len(self._before) <= step:
                last = len(self._before) - 1
                self._before.append(self._before[last] + Counter(self._chosen(last, self._prompts)))
            return self._before[step]


def streams(seed: int, count: int) -> list[int]:
    """A seed for each set: two sets of equal length must not draw the same rows."""
    others = np.random.SeedSequence(seed, spawn_key=STREAM).spawn(count - 1)
    return [seed, *(int(other.generate_state(1, np.uint64)[0]) for other in others)]
