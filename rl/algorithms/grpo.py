"""GRPO: Group Relative Policy Optimization (DeepSeekMath, arXiv 2402.03300). Its KL term: ``algorithm.kl``."""

from typing import ClassVar

from pydantic import Field

from rl.algorithms.algorithm import Aggregation, Algorithm, Floats, TokenLoss, Tokens, standardised
from rl.algorithms.ratios import clipped, ratio_of
from rl.records import Batch


class Grpo(Algorithm):
    """A = (r - mean) / std of the group; every completion weighs alike; the ratio is clipped."""

    summary: ClassVar[str] = "A = (r - mean) / std, clipped ratio"
    aggregation: ClassVar[Aggregation] = "sequence"  # the mean over its tokens, then over completions (equation 3)
    trust_region: ClassVar[bool] = True

    clip: float = Field(0.2, gt=0, lt=1, description="the ratio pi/old is clipped to [1 - clip, 1 + clip]")
    dual_clip: float = Field(3.0, gt=1, description="where the advantage is negative, the ratio counts as at most this")

    def advantages(self, batch: Batch) -> Floats:
        """A = (r - mean) / (std + 1e-6) of the group (section 4.1.2)."""
        return standardised(batch.returns)

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """-min(rho * A, clip(rho, 1 - eps, 1 + eps) * A) (equation 3), with the dual clip."""
        return clipped(ratio_of(tokens), tokens.advantage, self.clip, self.clip, self.dual_clip)


ALGORITHM = Grpo
