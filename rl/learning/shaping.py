"""The batch as a loss sees it, whatever the algorithm.

Legend: P groups, G completions per group.
"""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from rl.config import LossConfig
from rl.records import Batch


def shaped(batch: Batch, config: LossConfig, max_tokens: int) -> Batch:
    """The batch as the loss sees it: rewards less the penalty on long completions, and no tokens in completions without
    a verdict, nor with ``mask_truncated`` in those that were cut at ``max_tokens``, whose rewards still count in the
    mean of their group."""
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
