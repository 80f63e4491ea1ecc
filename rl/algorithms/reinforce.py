"""REINFORCE with the mean of the group as its baseline (Williams 1992, with the baseline of Peralta)."""

from typing import ClassVar

from pydantic import Field

from rl.algorithms.algorithm import Algorithm, Floats, TokenLoss, Tokens, centred
from rl.algorithms.ratios import weighted
from rl.records import Batch


class Reinforce(Algorithm):
    """A = r - mean(group); every token of the batch weighs alike; importance weights are truncated."""

    summary: ClassVar[str] = "A = r - mean(group)"

    ratio_cap: float = Field(2.0, gt=0, description="cap on a token's weight pi/old")

    def advantages(self, batch: Batch) -> Floats:
        """A = r - mean(group), the group-mean baseline."""
        return centred(batch.returns)

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """-A * sg(min(rho, cap)) * log pi: rho is 1 when the batch is on-policy; for tokens of an older version it is
        the importance weight, truncated as in TIS (min(rho, 2))."""
        return weighted(tokens, self.ratio_cap)


ALGORITHM = Reinforce
