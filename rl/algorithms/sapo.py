"""SAPO: Soft Adaptive Policy Optimization (Gao et al., arXiv 2511.20347, equations 5 and 6)."""

from typing import ClassVar

from pydantic import Field

from rl.algorithms.algorithm import Aggregation, Algorithm, Floats, TokenLoss, Tokens, standardised
from rl.algorithms.ratios import ratio_of
from rl.records import Batch


class Sapo(Algorithm):
    """A soft gate around a ratio of 1 in place of the clip: what moves away from it is damped, and never cut off."""

    summary: ClassVar[str] = "A = (r - mean) / std, softly gated ratio"
    aggregation: ClassVar[Aggregation] = "sequence"  # equation 5
    trust_region: ClassVar[bool] = True

    tau_positive: float = Field(1.0, gt=0, description="how fast the gate closes where the advantage is positive")
    tau_negative: float = Field(1.05, gt=0, description="and where it is negative, which destabilises more")

    def advantages(self, batch: Batch) -> Floats:
        """A = (r - mean) / (std + 1e-6) of the group."""
        return standardised(batch.returns)

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """-f(rho) * A with f(x) = sigmoid(tau * (x - 1)) * 4 / tau, whose slope at 1 is 1 (equation 6). ``gate`` is the
        slope at the token's ratio, 4 p (1 - p): 1 on-policy, towards 0 as the gate closes."""
        falls = (tokens.advantage <= 0).to(tokens.advantage.dtype)
        tau = self.tau_positive + (self.tau_negative - self.tau_positive) * falls
        open_ = (tau * (ratio_of(tokens) - 1)).sigmoid()
        gate = (4 * open_ * (1 - open_)).detach()
        return TokenLoss(-tokens.advantage * open_ * 4 / tau, {"gate": gate})


ALGORITHM = Sapo
