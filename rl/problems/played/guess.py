"""Numbers to guess. Each is drawn from 1 to LARGEST for training and held out alike: no prompt can tell them apart."""

from collections.abc import Iterator
from itertools import count

import numpy as np

from rl.problems.made import Side
from rl.records import Problem

LARGEST = 64
STREAMS = {"train": (11,), "held_out": (12,)}  # keep these draws apart from others with the same seed


def optimum(largest: int = LARGEST) -> float:
    """The fewest guesses on average, those of binary search: one number needs 1, two need 2, four need 3, …"""
    return sum(number.bit_length() for number in range(1, largest + 1)) / largest


def stream(seed: int, step: int, side: Side = "train") -> Iterator[Problem]:
    """The endless sequence of problems of one step, a function of (seed, step, side)."""
    for index in count():
        key = np.random.SeedSequence([seed, step, index], spawn_key=STREAMS[side])
        secret = int(np.random.Generator(np.random.Philox(key)).integers(1, LARGEST + 1))
        prompt = f"find the number from 1 to {LARGEST}."
        yield Problem(prompt, str(secret), f"guess:{seed}.{step}.{index}", {"largest": LARGEST})
