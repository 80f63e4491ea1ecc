"""Problems out of the endless streams that are made in code, and the least that it takes to solve some."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from rl.problems.played.guess import LARGEST
from rl.records import Problem


def drawing(stream: Callable[..., Iterator[Problem]]) -> Callable[..., list[Problem]]:
    """``draw(seed, step, how_many, skip=0, side=...)``: the problems ``skip`` to ``skip + how_many`` of that stream."""

    def draw(seed: int, step: int, how_many: int, *, skip: int = 0, **side: Any) -> list[Problem]:
        return list(islice(stream(seed, step, **side), skip, skip + how_many))

    return draw


def optimum(largest: int = LARGEST) -> float:
    """The fewest guesses of `guess` on average, by binary search: one number needs 1, two need 2, four need 3, …"""
    return sum(number.bit_length() for number in range(1, largest + 1)) / largest
