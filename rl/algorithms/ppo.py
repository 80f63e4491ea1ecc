"""PPO (Schulman et al., arXiv 1707.06347) with generalised advantage estimation (arXiv 1506.02438) and a critic."""

from typing import ClassVar

import numpy as np
from pydantic import Field

from rl.algorithms.algorithm import Algorithm, Floats, TokenLoss, Tokens
from rl.algorithms.gae import gae
from rl.algorithms.ratios import clipped, ratio_of
from rl.records import Batch


class Ppo(Algorithm):
    """Advantages of single tokens by a value model, which is trained beside the policy; the ratio is clipped."""

    summary: ClassVar[str] = "A by GAE with a critic, clipped ratio"
    needs: ClassVar[frozenset[str]] = frozenset({"values"})
    every_group: ClassVar[bool] = True
    trust_region: ClassVar[bool] = True

    clip: float = Field(0.2, gt=0, lt=1, description="the ratio pi/old is clipped to [1 - clip, 1 + clip]")
    gamma: float = Field(1.0, gt=0, le=1, description="discount per token")
    lam: float = Field(
        0.95, ge=0, le=1, description="lambda of GAE: 1 the Monte-Carlo return, 0 one step of the critic"
    )
    whiten: bool = Field(True, description="normalise the advantages of a batch to mean 0 and standard deviation 1")

    def advantages(self, batch: Batch) -> Floats:
        """[P, G, T] GAE of the rewards at the last token and the penalties at each; whitened over all tokens."""
        found = self._estimates(batch)
        if not self.whiten:
            return found
        learned = ~np.isnan(batch.rewards)[..., None] & batch.rollouts.trained
        of = found[learned].astype(np.float64)
        spread = of.std() + 1e-8 if of.size > 1 else 1.0
        return np.where(learned, (found - of.mean()) / spread, 0).astype(np.float32)

    def value_targets(self, batch: Batch) -> Floats:
        """[P, G, T] GAE + values: the lambda-returns."""
        assert batch.values is not None
        return np.asarray(self._estimates(batch) + batch.values, dtype=np.float32)

    def _estimates(self, batch: Batch) -> Floats:
        assert batch.values is not None
        return gae(batch.rewards, batch.values, batch.rollouts.trained, self.gamma, self.lam, batch.penalties)

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """-min(rho * A, clip(rho, 1 - eps, 1 + eps) * A) (equation 7)."""
        return clipped(ratio_of(tokens), tokens.advantage, self.clip, self.clip)


ALGORITHM = Ppo
