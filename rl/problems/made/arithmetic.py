"""Arithmetic in two dozen wordings: the problems that training begins with where no others are named.

The warm-up shows the policy another set, `grammar`, which has some of these wordings and means by their words what
these mean; the others it has to find out by trial. The numbers are drawn anew for every problem, which is a function of
(seed, step, index) alone.
"""

from collections.abc import Iterator
from itertools import count

import numpy as np

from rl.problems.made.grammar import is_held_out
from rl.problems.streams import Side
from rl.records import Problem

LARGEST = 60  # numbers are drawn from 1 to this

STREAM = (6,)  # keeps these draws apart from others with the same seed

WORDINGS = (  # and what each asks for
    ("add {a} and {b}.", "{a} + {b}"),
    ("multiply {a} by {b}.", "{a} * {b}"),
    ("subtract {b} from {a}.", "{a} - {b}"),
    ("what is left when you take {b} from {a}?", "{a} - {b}"),
    ("add {a}, {b} and {c}.", "{a} + {b} + {c}"),
    ("what is {a} plus {b}, minus {c}?", "{a} + {b} - {c}"),
    ("add {a} and {b}, then subtract {c}.", "{a} + {b} - {c}"),
    ("take {b} away from {a}, then add {c}.", "{a} - {b} + {c}"),
    ("take the difference of {a} and {b} and subtract it from {c}.", "{c} - ({a} - {b})"),
    ("add {a} to the product of {b} and {c}.", "{a} + {b} * {c}"),
    ("subtract the product of {b} and {c} from {a}.", "{a} - {b} * {c}"),
    ("multiply {a} by {b}, then add {c}.", "{a} * {b} + {c}"),
    ("multiply {a} by {b}, then subtract {c} from the product.", "{a} * {b} - {c}"),
    ("what is the product of {a} and {b}, less {c}?", "{a} * {b} - {c}"),
    ("what is the sum of {a} and {b}, times {c}?", "({a} + {b}) * {c}"),
    ("add {a} and {b}, then multiply the sum by {c}.", "({a} + {b}) * {c}"),
    ("increase {a} by {b}, then multiply the result by {c}.", "({a} + {b}) * {c}"),
    ("subtract {b} from {a}, then multiply the difference by {c}.", "({a} - {b}) * {c}"),
    ("start with {a}, subtract {b}, then multiply by {c} and add {d}.", "({a} - {b}) * {c} + {d}"),
    ("add {a} and {b}, multiply the sum by {c}, then subtract {d}.", "({a} + {b}) * {c} - {d}"),
    ("add {a}, {b} and {c}, then multiply the total by {d}.", "({a} + {b} + {c}) * {d}"),
    ("add {a} and {b}, add {c} and {d}, then multiply the two sums.", "({a} + {b}) * ({c} + {d})"),
    ("multiply {a} by {b}, multiply {c} by {d}, then add the products.", "{a} * {b} + {c} * {d}"),
    ("multiply {a} by {b}, add {c}, then multiply the result by {d}.", "({a} * {b} + {c}) * {d}"),
)


def stream(seed: int, step: int, side: Side = "train") -> Iterator[Problem]:
    """The endless sequence of problems of one step, a function of (seed, step, side). What is held out is held out by
    the grammar too, so that the warm-up does not show it."""
    for index in count():
        rng = np.random.Generator(np.random.Philox(np.random.SeedSequence([seed, step, index], spawn_key=STREAM)))
        wording, target = WORDINGS[int(rng.integers(len(WORDINGS)))]
        numbers = dict(zip("abcd", rng.integers(1, LARGEST + 1, 4).tolist(), strict=True))
        prompt = wording.format(**numbers)
        if is_held_out(prompt) == (side == "held_out"):
            yield Problem(prompt, target.format(**numbers), source=f"arithmetic:{seed}.{step}.{index}")
