"""Problems out of the endless streams that `rl.problems.made.grammar` and `rl.problems.made.countdown` make."""

from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from rl.records import Problem


def drawing(stream: Callable[..., Iterator[Problem]]) -> Callable[..., list[Problem]]:
    """``draw(seed, step, how_many, skip=0, side=...)``: the problems ``skip`` to ``skip + how_many`` of that stream."""

    def draw(seed: int, step: int, how_many: int, *, skip: int = 0, **side: Any) -> list[Problem]:
        return list(islice(stream(seed, step, **side), skip, skip + how_many))

    return draw
