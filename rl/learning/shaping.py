"""Penalties and masks on a batch, the same for every algorithm.

Legend: P groups, G completions per group.
"""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.objective import divergence
from rl.records import Batch


def shaped(batch: Batch, config: AlgorithmSpec, max_tokens: int, coefficient: float = 0.0) -> Batch:
    """The batch with the penalty on long completions, by what the policy wrote of them, in its rewards, with that on
    the divergence from the reference where it is taken off the reward, by this ``coefficient``, and without the tokens
    of completions that have no verdict or, with ``mask_truncated``, were cut at ``max_tokens``; the rewards of these
    still count in the mean of their group."""
    of, rewards = batch.rollouts, batch.rewards
    if buffer := config.buffer(max_tokens):
        rewards = rewards + overlong_penalty(of.trained_lengths, max_tokens, buffer)
    learned_from = ~np.isnan(rewards) & (of.ended | (not config.mask_truncated))
    penalties = kl_penalty(batch, config.kl.chosen, coefficient) if config.kl.in_reward else batch.penalties
    return replace(batch, rewards=rewards, penalties=penalties, rollouts=of.only(learned_from))


def kl_penalty(batch: Batch, estimator: str, coefficient: float) -> NDArray[np.float32]:
    """[P, G, T] to take off the reward of each token: the divergence of the behaviour policy from the reference times
    the coefficient (InstructGPT, arXiv 2203.02155, equation 2); 0 where the policy wrote none."""
    assert batch.reference_logprobs is not None
    mu, reference = (torch.from_numpy(of) for of in (batch.rollouts.logprobs, batch.reference_logprobs))
    found = coefficient * divergence(mu, reference, estimator).numpy()
    return np.where(batch.rollouts.trained, found, 0).astype(np.float32)


def overlong_penalty(lengths: NDArray[np.int32], max_tokens: int, buffer: int) -> NDArray[np.float32]:
    """[P, G] to add to rewards: 0 up to max_tokens - buffer tokens, from there down in a line to -1 at max_tokens
    (DAPO, arXiv 2503.14476, equation 13)."""
    free = max_tokens - buffer
    penalty: NDArray[np.float32] = np.clip((free - lengths) / buffer, -1, 0).astype(np.float32)
    return penalty
