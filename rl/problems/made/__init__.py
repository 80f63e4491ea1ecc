"""Problems that are made in code: a module of this room is a set of that name, its ``stream(seed, step, side)`` the
endless sequence of a step's problems. Where a built-in verifier has the same name, it judges them."""

from collections.abc import Callable, Iterator
from importlib import import_module

from rl.config import GYM
from rl.problems.streams import Side, module_of
from rl.records import Problem


def stream_of(name: str) -> Callable[[int, int, Side], Iterator[Problem]]:
    """The stream of a set, a function of (seed, step, side). Raises ProblemError where its package is not installed."""
    if name.startswith(GYM):
        from rl.problems import gym

        return gym.stream_of(name.removeprefix(GYM))
    stream: Callable[[int, int, Side], Iterator[Problem]] = import_module(module_of(name)).stream
    return stream
