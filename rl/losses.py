"""Advantages and policy-gradient losses, with their formulas.

Legend: P groups, G completions per group, N completion tokens. r: reward; pi: the policy being trained; mu: the
behaviour policy that sampled; rho = pi / mu per token.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl.config import LossConfig
from rl.records import Batch


@dataclass(frozen=True)
class TokenLoss:
    """Per-token terms; the loss is ``(weight * value).sum()`` over the whole batch."""

    value: Tensor  # [N]
    clipped: Tensor  # [N] bool: the ratio was cut here


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


def advantages(rewards: NDArray[np.float32], name: str) -> NDArray[np.float32]:
    """[P, G] advantages of [P, G] rewards.

    reinforce: A = r - mean(group), the group-mean baseline. grpo: A = (r - mean) / (std + 1e-6) with the sample
    standard deviation (DeepSeekMath, arXiv 2402.03300, section 4.1.2). Mean and deviation are over the rewards that are
    known; a completion whose reward is not (NaN) has advantage 0.
    """
    known = ~np.isnan(rewards)
    count = known.sum(axis=1, keepdims=True)
    mean = np.where(known, rewards, 0).sum(axis=1, keepdims=True) / np.maximum(count, 1)
    centred = np.where(known, rewards - mean, 0)
    if _known(name) == "grpo":
        variance = (centred**2).sum(axis=1, keepdims=True) / np.maximum(count - 1, 1)
        centred = centred / (np.sqrt(variance) + 1e-6)
    result: NDArray[np.float32] = centred.astype(np.float32)
    return result


def token_weights(lengths: NDArray[np.int32], name: str) -> NDArray[np.float32]:
    """[P, G] weight of each token of a completion, summing to 1 over all tokens of the batch.

    reinforce: every token alike. grpo: the mean over a completion's tokens, then over completions (arXiv 2402.03300,
    equation 3). A completion without tokens takes no part.
    """
    if _known(name) == "grpo":
        there = lengths > 0
        weights: NDArray[np.float32] = (there / (there.sum() * np.maximum(lengths, 1))).astype(np.float32)
        return weights
    return np.full(lengths.shape, 1.0 / lengths.sum(), dtype=np.float32)


def reinforce(logprobs: Tensor, behaviour: Tensor, advantage: Tensor, config: LossConfig) -> TokenLoss:
    """-A * sg(min(rho, cap)) * log pi, per token [N].

    rho is 1 when the batch is on-policy; for tokens of an older version it is the importance weight, truncated as in
    TIS (min(rho, 2)), and no gradient passes through it.
    """
    ratio = (logprobs.detach() - behaviour).exp()
    weight = ratio.clamp(max=config.ratio_cap)
    return TokenLoss(-advantage * weight * logprobs, ratio > config.ratio_cap)


def grpo(logprobs: Tensor, behaviour: Tensor, advantage: Tensor, config: LossConfig) -> TokenLoss:
    """-min(rho * A, clip(rho, 1 - eps, 1 + eps) * A), per token [N] (arXiv 2402.03300, equation 3, without the KL), and
    where A < 0 at most -c * A (dual-clip PPO, Ye et al., arXiv 1912.09729), without which a token that has become
    likely since it was sampled weighs as much as its ratio grows."""
    ratio = (logprobs - behaviour).exp()
    free = ratio * advantage
    cut = ratio.clamp(1 - config.clip, 1 + config.clip) * advantage
    bound = torch.where(advantage < 0, config.dual_clip * advantage, -torch.inf)
    kept = torch.minimum(free, cut)
    return TokenLoss(-torch.maximum(kept, bound), ((cut < free) | (kept < bound)).detach())


LOSSES = {"reinforce": reinforce, "grpo": grpo}


def _known(name: str) -> str:
    """The name of a loss whose advantages and weights stand above; another one is not silently one of these."""
    if name not in LOSSES:
        raise ValueError(f"loss {name!r} has no advantages and no weights of tokens")
    return name
