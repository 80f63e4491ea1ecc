"""Completions of several turns, and the same without their observations."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rl.learning.scoring import Scoring
from rl.model.policy import Policy
from rl.records import Batch, Problem, Rollouts

REWARDS = np.float32([[1, 0, math.nan, 1], [1, 1, 1, 1], [0, 1, 0.5, 0]])
OURS, THEIRS = True, False
# two turns, one, three, and such as end with an observation, or begin with one
TURNS = [
    [OURS] * 3 + [THEIRS] * 2 + [OURS] * 2,
    [OURS] * 4,
    [OURS] + [THEIRS] + [OURS] * 2 + [THEIRS] * 3 + [OURS],
    [OURS] * 2 + [THEIRS] * 2,
    [THEIRS] * 2 + [OURS] * 3,
]


def conversations(policy: Policy, spread: float, turns: list[list[bool]] = TURNS, seed: int = 0) -> Batch:
    """Three groups of four, by a policy that this one is `spread` away from, with all that an algorithm may need. What
    nobody may read, at observations and past the end, is noise."""
    random = np.random.default_rng(seed)
    flags = [turns[at % len(turns)] for at in range(REWARDS.size)]
    prompts = [random.integers(3, 90, length) for length in (2, 9, 5)]
    completions = [random.integers(3, 90, len(each)) for each in flags]
    problems = [Problem("", "", f"test:{p}") for p in range(3)]
    versions = [np.sort(random.integers(0, 3, len(each))) for each in flags]
    ended = random.random(REWARDS.size) < 0.7
    of = Rollouts.padded(problems, prompts, completions, versions=versions, trained=flags, ended=ended)

    def number(low: float, high: float) -> NDArray[np.float32]:
        return random.uniform(low, high, of.tokens.shape).astype(np.float32)

    mu = Scoring(policy).logprobs(of, 1.0) + random.normal(0, spread, of.tokens.shape).astype(np.float32)
    of = replace(
        of,
        logprobs=np.where(of.trained, mu, number(-0.05, 0.05)),
        versions=np.where(of.trained, of.versions, random.integers(-9, 99, of.versions.shape)).astype(np.int32),
    )
    return Batch(
        of,
        REWARDS,
        (("",) * 4,) * 3,
        reference_logprobs=number(-6, -2),
        values=number(-1, 1),
        baseline=np.float32([0, 1, 0.5]),
    )


def squeezed(batch: Batch) -> Batch:
    """The same as if there had been no observations: of one turn."""
    of = batch.rollouts

    def rows(array: NDArray[Any] | None) -> Any:
        return None if array is None else [array[at][of.trained[at]] for at in np.ndindex(of.lengths.shape)]

    single = Rollouts.padded(
        of.problems, of.prompts, rows(of.tokens), logprobs=rows(of.logprobs), versions=rows(of.versions)
    )
    single = replace(single, ended=of.ended)

    def beside(array: NDArray[np.float32] | None) -> NDArray[np.float32] | None:
        if array is None:
            return None
        found = np.zeros(single.tokens.shape, np.float32)
        found[single.inside] = np.concatenate(rows(array))
        return found

    return replace(
        batch,
        rollouts=single,
        reference_logprobs=beside(batch.reference_logprobs),
        values=beside(batch.values),
        penalties=beside(batch.penalties),
    )
