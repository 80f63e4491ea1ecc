"""REINFORCE with the mean of the group as its baseline."""

from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rl.algorithms.algorithm import Algorithm, TokenLoss, centred

if TYPE_CHECKING:
    from torch import Tensor


class Reinforce(Algorithm):
    """A = r - mean(group); every token of the batch weighs alike; importance weights are truncated."""

    summary: ClassVar[str] = "A = r - mean(group)"

    ratio_cap: float = Field(
        2.0, gt=0, description="reinforce: weight pi/mu of a token from an older version is cut at this"
    )

    def advantages(self, rewards: NDArray[np.float32]) -> NDArray[np.float32]:
        """A = r - mean(group), the group-mean baseline."""
        return centred(rewards)

    def token_weights(self, lengths: NDArray[np.int32]) -> NDArray[np.float32]:
        """Every token alike."""
        return np.full(lengths.shape, 1.0 / lengths.sum(), dtype=np.float32)

    def token_loss(self, logprobs: "Tensor", behaviour: "Tensor", advantage: "Tensor") -> TokenLoss:
        """-A * sg(min(rho, cap)) * log pi, per token [N].

        rho is 1 when the batch is on-policy; for tokens of an older version it is the importance weight, truncated as
        in TIS (min(rho, 2)), and no gradient passes through it.
        """
        ratio = (logprobs.detach() - behaviour).exp()
        weight = ratio.clamp(max=self.ratio_cap)
        return TokenLoss(-advantage * weight * logprobs, {"clip_fraction": ratio > self.ratio_cap})


ALGORITHM = Reinforce
