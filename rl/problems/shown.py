"""What the warm-up of the tiny policy shows of problems that are made in code: completions in the form that they are
answered in, by one who does not answer them well, so that there is something to reward and something to learn.

A module of `rl.problems.made` or `rl.problems.played` that has them defines ``to_warm_up(seed, step)``, the endless
sequence of a step's, and ``UPDATES``, so many that a run begins with rewards of about a half.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import count, islice
from types import ModuleType

import numpy as np

from rl.config import IN_CODE
from rl.problems.streams import module_of
from rl.records import Problem

APART = 2**32  # seeds of runs are below it
GRAMMAR = "grammar"  # what is shown of all others


@dataclass(frozen=True)
class Shown:
    """A problem with a completion of it, which may have several turns."""

    problem: Problem
    turns: tuple[tuple[str, str], ...]  # what the policy says, and what it observes then, but for the last one

    @classmethod
    def target(cls, problem: Problem) -> "Shown":
        """Its target, in one turn."""
        return cls(problem, ((problem.target, ""),))


def shown(name: str, seed: int, step: int, how_many: int) -> list[Shown]:
    """What one update of the warm-up shows of the problems ``name``, none of them held out, and drawn apart from those
    that a run draws with the same seed and step."""
    return list(islice(_module(name).to_warm_up(seed, step), how_many))


def updates(name: str) -> int:
    """How many updates the warm-up makes on the problems ``name``."""
    made: int = _module(name).UPDATES
    return made


def shown_of(path: str) -> str:
    """The problems that are shown to a policy that is to be trained on ``path``."""
    return path if path in IN_CODE and hasattr(_module(path), "to_warm_up") else GRAMMAR


def drawn_apart(
    stream: Callable[[int, int], Iterator[Problem]], seed: int, step: int
) -> Iterator[tuple[Problem, np.random.Generator]]:
    """Problems that no run draws by this seed and step, each with random numbers of its own."""
    for index, problem in zip(count(), stream(APART + seed, step), strict=False):
        key = np.random.SeedSequence([seed, step, index], spawn_key=(17,))
        yield problem, np.random.Generator(np.random.Philox(key))


def _module(name: str) -> ModuleType:
    return import_module(module_of(name))
