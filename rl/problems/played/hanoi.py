"""Disks on three pegs, to be brought to peg c."""

from collections.abc import Iterator
from itertools import count

import numpy as np

from rl.environments.built_in.hanoi import PEGS, Hanoi, shown
from rl.problems.made.grammar import is_held_out
from rl.problems.shown import Shown, drawn_apart
from rl.problems.streams import Side
from rl.records import Problem

SIZES = (2, 3, 3, 4)  # how many disks, drawn from these
UPDATES = 120  # of the warm-up
STREAM = (13,)  # keeps these draws apart from others with the same seed


def fewest(pegs: str, to: str = "c") -> int:
    """The fewest moves that bring all disks, whose pegs are given, the smallest first, to one peg: where the largest is
    not there yet, the others go out of its way, it moves, and they follow in 2^n - 1 moves."""
    if not pegs:
        return 0
    others, largest = pegs[:-1], pegs[-1]
    if largest == to:
        return fewest(others, to)
    (way,) = set(PEGS) - {largest, to}
    return fewest(others, way) + int(2 ** len(others))


def stream(seed: int, step: int, side: Side = "train") -> Iterator[Problem]:
    """The endless sequence of problems of one step, a function of (seed, step, side)."""
    for index in count():
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, step, index], spawn_key=STREAM)))
        disks = SIZES[int(rng.integers(len(SIZES)))]
        pegs = "".join(PEGS[peg] for peg in rng.integers(0, len(PEGS), disks))
        stacks = {peg: [disk for disk in range(disks, 0, -1) if pegs[disk - 1] == peg] for peg in PEGS}
        prompt = f"take all to c. {shown(stacks)}"
        if fewest(pegs) and is_held_out(prompt) == (side == "held_out"):
            yield Problem(prompt, str(fewest(pegs)), f"hanoi:{seed}.{step}.{index}", {"pegs": pegs})


def to_warm_up(seed: int, step: int) -> Iterator[Shown]:
    """Moves of which half are any that the rules allow, half on a way of the fewest."""
    for problem, rng in drawn_apart(stream, seed, step):
        yield Shown(problem, tuple(moves(problem, rng)))


def moves(problem: Problem, rng: np.random.Generator) -> Iterator[tuple[str, str]]:
    """Up to twice the fewest moves and four, whether or not they bring all disks to peg c."""
    pegs = str(problem.extra["pegs"])
    played = Hanoi()
    played.reset(problem.target, pegs)
    for _ in range(2 * int(problem.target) + 4):
        allowed = [
            (pegs[disk], to, pegs[:disk] + to + pegs[disk + 1 :])
            for disk in range(len(pegs))
            for to in PEGS
            if not {pegs[disk], to} & {*pegs[:disk]} and to != pegs[disk]
        ]
        best = [move for move in allowed if fewest(move[2]) < fewest(pegs)]
        some = best if rng.random() < 0.5 else allowed
        source, to, pegs = some[int(rng.integers(len(some)))]
        yield f"{source} {to}", played.step(f"{source} {to}")
        if played.over:
            return
