"""GRPO: Group Relative Policy Optimization (DeepSeekMath, arXiv 2402.03300), without the KL term."""

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rl.algorithms.algorithm import Algorithm, TokenLoss, centred

if TYPE_CHECKING:
    from torch import Tensor

LARGEST = 60.0  # nats, of a log-ratio: exp of 89 is infinite in float32


class Grpo(Algorithm):
    """A = (r - mean) / std of the group; every completion weighs alike; the ratio is clipped."""

    summary: ClassVar[str] = "A = (r - mean) / std, clipped ratio"

    clip: float = Field(0.2, gt=0, lt=1, description="grpo: the ratio pi/mu is clipped to [1 - clip, 1 + clip]")
    dual_clip: float = Field(
        3.0, gt=1, description="grpo: where the advantage is negative, the ratio counts as at most this"
    )

    def advantages(self, rewards: NDArray[np.float32]) -> NDArray[np.float32]:
        """A = (r - mean) / (std + 1e-6) with the sample standard deviation (section 4.1.2), both over the rewards that
        are known."""
        others = np.maximum((~np.isnan(rewards)).sum(axis=1, keepdims=True) - 1, 1)
        difference = centred(rewards)
        deviation = np.sqrt((difference**2).sum(axis=1, keepdims=True) / others)
        result: NDArray[np.float32] = (difference / (deviation + 1e-6)).astype(np.float32)
        return result

    def token_weights(self, lengths: NDArray[np.int32]) -> NDArray[np.float32]:
        """The mean over a completion's tokens, then over completions (equation 3)."""
        there = lengths > 0
        weights: NDArray[np.float32] = (there / (there.sum() * np.maximum(lengths, 1))).astype(np.float32)
        return weights

    def token_loss(self, logprobs: "Tensor", behaviour: "Tensor", advantage: "Tensor") -> TokenLoss:
        """-min(rho * A, clip(rho, 1 - eps, 1 + eps) * A), per token [N] (equation 3, without the KL), and where A < 0
        at most -c * A (dual-clip PPO, Ye et al., arXiv 1912.09729), without which a token that has become likely since
        it was sampled weighs as much as its ratio grows."""
        # where it would overflow the loss is bounded, and its gradient 0, which infinity would make a NaN
        ratio = (logprobs - behaviour).clamp(max=LARGEST).exp()
        free = ratio * advantage
        cut = ratio.clamp(1 - self.clip, 1 + self.clip) * advantage
        bound = (self.dual_clip * advantage).where(advantage < 0, -float("inf"))
        kept = free.minimum(cut)
        return TokenLoss(-kept.maximum(bound), {"clip_fraction": ((cut < free) | (kept < bound)).detach()})


ALGORITHM = Grpo
