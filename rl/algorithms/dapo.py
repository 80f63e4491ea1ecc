"""DAPO: Decoupled Clip and Dynamic sAmpling Policy Optimization (Yu et al., arXiv 2503.14476)."""

from typing import ClassVar

from pydantic import Field

from rl.algorithms.algorithm import Algorithm, Floats, TokenLoss, Tokens, standardised
from rl.algorithms.ratios import clipped, ratio_of
from rl.records import Batch


class Dapo(Algorithm):
    """GRPO's advantage, a wider clip upwards, every token alike, and rewards that fall near the limit of tokens. Its
    dynamic sampling is what every algorithm here has: groups without variance are replaced (``batch.oversample``)."""

    summary: ClassVar[str] = "A = (r - mean) / std, clipped wider upwards, long completions penalised"
    overlong_share: ClassVar[float] = 0.2  # 4,096 of 20,480 tokens (section 4.1)
    trust_region: ClassVar[bool] = True

    clip_low: float = Field(0.2, gt=0, lt=1, description="the ratio pi/old is clipped from below to 1 - clip_low")
    clip_high: float = Field(0.28, gt=0, description="and from above to 1 + clip_high")

    def advantages(self, batch: Batch) -> Floats:
        """A = (r - mean) / (std + 1e-6) of the group (equation 9)."""
        return standardised(batch.returns)

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """-min(rho * A, clip(rho, 1 - eps_low, 1 + eps_high) * A) (equation 8)."""
        return clipped(ratio_of(tokens), tokens.advantage, self.clip_low, self.clip_high)


ALGORITHM = Dapo
