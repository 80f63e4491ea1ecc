"""Judging whole groups of completions. It needs no torch: a verifier's process stays small."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rl.arithmetic import verify


def judge(
    targets: Sequence[str], completions: Sequence[Sequence[str]]
) -> tuple[NDArray[np.float32], tuple[tuple[str, ...], ...]]:
    """Rewards [P, G] and reasons [P] of [G] for G completions of each of P targets.

    Raises:
        ValueError: a target that cannot be evaluated: a broken problem is an error, never a reward of 0.
    """
    verdicts = [[verify(target, text) for text in texts] for target, texts in zip(targets, completions, strict=True)]
    rewards = np.array([[verdict.reward for verdict in row] for row in verdicts], dtype=np.float32)
    return rewards, tuple(tuple(verdict.reason for verdict in row) for row in verdicts)
