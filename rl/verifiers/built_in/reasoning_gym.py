"""Verifier `reasoning_gym`, see `reading.gym`: the package takes a second to import, and its checks may take long."""

from rl.records import Instructions, Problem
from rl.verifiers.contract import Declared


def check(problem: Problem) -> None:
    """Raise ValueError unless it is a problem of `rl.problems.gym`."""
    task, seed, index = (problem.extra.get(name) for name in ("task", "seed", "index"))
    if not (isinstance(task, str) and type(seed) is int and type(index) is int):
        raise ValueError("is not of reasoning-gym: give --problems reasoning-gym:TASK")


VERIFIER = Declared(
    Instructions("Think step by step. End with the answer alone between <answer> and </answer>."),
    tokens=1024,
    check=check,
    module="rl.verifiers.reading.gym",
    package="reasoning_gym",
)
