"""Countdown problems made in code: numbers to combine, and a value that some expression of all of them has.

Every problem is a function of (seed, step, index) alone. Whether a problem is held out depends on its numbers and
target, so that it is on the same side for every seed and in whatever order the numbers are named.
"""

import hashlib
from collections.abc import Iterator
from fractions import Fraction
from itertools import count

import numpy as np

from rl.problems.streams import Side
from rl.records import Problem

LARGEST = 20  # numbers are drawn from 1 to this
SIZES = (3, 3, 4)  # how many numbers, drawn from these
TARGETS = range(1, 101)
HELD_OUT_SHARE = 16  # one problem in so many belongs to the held-out side

STREAM = (2,)  # keeps these draws apart from others with the same seed


def is_held_out(numbers: list[int], target: int) -> bool:
    """Whether a problem is held out."""
    return hashlib.sha256(f"{sorted(numbers)} {target}".encode()).digest()[0] % HELD_OUT_SHARE == 0


def reachable(rng: np.random.Generator, numbers: list[int]) -> int | None:
    """A value that all the numbers can make, joined two at a time; None if these choices give none in TARGETS."""
    left = [Fraction(number) for number in numbers]
    while len(left) > 1:
        first, second = (left.pop(int(rng.integers(len(left)))) for _ in range(2))
        match rng.integers(4):
            case 0:
                left.append(first + second)
            case 1:
                left.append(first - second)
            case 2:
                left.append(first * second)
            case _ if second:
                left.append(first / second)
            case _:
                return None
    (value,) = left
    return int(value) if value in TARGETS else None


def stream(seed: int, step: int, side: Side = "train") -> Iterator[Problem]:
    """The endless sequence of problems of one step, a function of (seed, step, side)."""
    for index in count():
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, step, index], spawn_key=STREAM)))
        numbers = [int(n) for n in rng.integers(1, LARGEST + 1, SIZES[int(rng.integers(len(SIZES)))])]
        target = reachable(rng, numbers)
        if target is not None and is_held_out(numbers, target) == (side == "held_out"):
            *first, last = map(str, numbers)
            prompt = f"combine {', '.join(first)} and {last} to obtain {target}."
            yield Problem(prompt, str(target), f"countdown:{seed}.{step}.{index}", {"numbers": numbers})
