"""REINFORCE++ (Hu et al., arXiv 2501.03262): advantages are normalised over the batch. Its KL: ``algorithm.kl``."""

from typing import ClassVar

import numpy as np
from pydantic import Field

from rl.algorithms.algorithm import Algorithm, Floats, TokenLoss, Tokens
from rl.algorithms.gae import returns_to_go
from rl.algorithms.ratios import clipped, ratio_of
from rl.records import Batch


class ReinforcePp(Algorithm):
    """No baseline of a group: the mean and the deviation are those of the tokens of the batch, whatever the prompt."""

    summary: ClassVar[str] = "A = (r - mean) / std of the batch's tokens, clipped ratio"
    every_group: ClassVar[bool] = True
    trust_region: ClassVar[bool] = True

    clip: float = Field(0.2, gt=0, lt=1, description="the ratio pi/old is clipped to [1 - clip, 1 + clip]")

    def advantages(self, batch: Batch) -> Floats:
        """[P, G, T] A_t = (R_t - mean) / (std + 1e-8) over all tokens of completions with a known reward, with R_t the
        reward less the penalties from token t on."""
        learned = ~np.isnan(batch.rewards)[..., None] & batch.rollouts.trained
        returns = returns_to_go(batch).astype(np.float64)  # of equal ones the deviation is 0, not what rounding makes
        known = returns[learned]
        mean, deviation = (known.mean(), known.std()) if known.size > 1 else (0.0, 1.0)
        return np.where(learned, (returns - mean) / (deviation + 1e-8), 0).astype(np.float32)

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """-min(rho * A, clip(rho, 1 - eps, 1 + eps) * A)."""
        return clipped(ratio_of(tokens), tokens.advantage, self.clip, self.clip)


ALGORITHM = ReinforcePp
