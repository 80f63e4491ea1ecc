"""Losses that several algorithms share: functions of the ratio rho = pi / old of a token. Loading this module does not
import torch.

Legend: N completion tokens.
"""

from typing import TYPE_CHECKING

from rl.algorithms.algorithm import TokenLoss, Tokens

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 60.0  # nats, of a log-ratio: exp of 89 is infinite in float32


def ratio_of(tokens: Tokens) -> "Tensor":
    """[N] rho, with its gradient. Where it would overflow it is bounded, and its gradient 0, which infinity would make
    a NaN."""
    return (tokens.logprobs - tokens.old).clamp(max=LARGEST).exp()


def weighted(tokens: Tokens, cap: float) -> TokenLoss:
    """-sg(min(rho, cap)) * A * log pi: the policy gradient with a truncated importance weight, through which no
    gradient passes."""
    ratio = ratio_of(tokens).detach()
    return TokenLoss(-tokens.advantage * ratio.clamp(max=cap) * tokens.logprobs, {"clip_fraction": ratio > cap})


def clipped(ratio: "Tensor", advantage: "Tensor", low: float, high: float, dual: float | None = None) -> TokenLoss:
    """-min(rho * A, clip(rho, 1 - low, 1 + high) * A) (PPO, arXiv 1707.06347, equation 7), and with ``dual``, where
    A < 0, at most -dual * A (dual-clip PPO, arXiv 1912.09729, equation 3), without which a token that has become likely
    since it was sampled weighs as much as its ratio grows."""
    free = ratio * advantage
    cut = ratio.clamp(1 - low, 1 + high) * advantage
    kept = free.minimum(cut)
    stopped = cut < free
    if dual is not None:
        bound = (dual * advantage).where(advantage < 0, -float("inf"))
        stopped = stopped | (kept < bound)
        kept = kept.maximum(bound)
    return TokenLoss(-kept, {"clip_fraction": stopped.detach()})
