"""CISPO: Clipped IS-weight Policy Optimization (MiniMax-M1, arXiv 2506.13585, equations 4 and 5)."""

from typing import ClassVar

from pydantic import Field

from rl.algorithms.algorithm import Algorithm, Floats, TokenLoss, Tokens, standardised
from rl.algorithms.ratios import weighted
from rl.records import Batch


class Cispo(Algorithm):
    """The importance weight is clipped in place of the update: every token keeps a gradient."""

    summary: ClassVar[str] = "A = (r - mean) / std, clipped importance weight"

    weight_cap: float = Field(
        5.0,
        gt=1,
        description="weight pi/old of a token is at most this: 1 + eps_high of the paper, which has no eps_low",
    )

    def advantages(self, batch: Batch) -> Floats:
        """A = (r - mean) / (std + 1e-6) of the group."""
        return standardised(batch.returns)

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """-sg(min(rho, cap)) * A * log pi (equations 4 and 5)."""
        return weighted(tokens, self.weight_cap)


ALGORITHM = Cispo
