"""Numbers to guess. Each is drawn from 1 to LARGEST for training and held out alike: no prompt can tell them apart."""

from collections.abc import Iterator
from itertools import count

import numpy as np

from rl.environments.built_in.guess import Guess
from rl.problems.shown import Shown, drawn_apart
from rl.problems.streams import Side
from rl.records import Problem

LARGEST = 64
UPDATES = 900  # of the warm-up: nine of ten are found then
STREAMS = {"train": (11,), "held_out": (12,)}  # keep these draws apart from others with the same seed


def stream(seed: int, step: int, side: Side = "train") -> Iterator[Problem]:
    """The endless sequence of problems of one step, a function of (seed, step, side)."""
    for index in count():
        key = np.random.SeedSequence([seed, step, index], spawn_key=STREAMS[side])
        secret = int(np.random.Generator(np.random.Philox(key)).integers(1, LARGEST + 1))
        prompt = f"find the number from 1 to {LARGEST}."
        yield Problem(prompt, str(secret), f"guess:{seed}.{step}.{index}", {"largest": LARGEST})


def to_warm_up(seed: int, step: int) -> Iterator[Shown]:
    """Guesses of any number that the answers so far leave, which takes 6.6 of them on average."""
    for problem, rng in drawn_apart(stream, seed, step):
        yield Shown(problem, tuple(guesses(problem, rng)))


def guesses(problem: Problem, rng: np.random.Generator) -> Iterator[tuple[str, str]]:
    """What is guessed, and what is said to it, until the number is found or no turn is left."""
    played = Guess()
    played.reset(problem.target)
    least, most = 1, LARGEST
    for _ in range(Guess.turns):
        number = int(rng.integers(least, most + 1))
        observed = played.guess(number)
        yield f"guess({number})", observed
        if played.over:
            return
        least, most = (number + 1, most) if observed == "higher" else (least, number - 1)
