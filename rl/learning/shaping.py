"""Penalties and masks on a batch, the same for every algorithm.

Legend: P groups, G completions per group.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rl.config import LossConfig
from rl.records import Batch


def shaped(batch: Batch, config: LossConfig, max_tokens: int) -> Batch:
    """The batch with the penalty on long completions in its rewards, and without the tokens of completions that have no
    verdict or, with ``mask_truncated``, were cut at ``max_tokens``; the rewards of these still count in the mean of
    their group."""
    of, rewards = batch.rollouts, batch.rewards
    if config.overlong:
        rewards = rewards + overlong_penalty(of.lengths, max_tokens, config.overlong)
    learned_from = ~np.isnan(rewards) & (of.ended | (not config.mask_truncated))
    lengths = np.where(learned_from, of.lengths, 0).astype(np.int32)
    return replace(batch, rewards=rewards, rollouts=replace(of, lengths=lengths))


def overlong_penalty(lengths: NDArray[np.int32], max_tokens: int, buffer: int) -> NDArray[np.float32]:
    """[P, G] to add to rewards: 0 up to max_tokens - buffer tokens, from there down in a line to -1 at max_tokens
    (DAPO, arXiv 2503.14476, equation 13)."""
    free = max_tokens - buffer
    penalty: NDArray[np.float32] = np.clip((free - lengths) / buffer, -1, 0).astype(np.float32)
    return penalty
