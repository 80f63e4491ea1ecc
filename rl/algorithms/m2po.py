"""M2PO: Second-Moment Trust Policy Optimization (Zheng et al., arXiv 2510.01161), for batches of old versions."""

from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from rl.algorithms.algorithm import Algorithm, Floats, TokenLoss, Tokens, standardised
from rl.algorithms.ratios import ratio_of
from rl.records import Batch


class M2po(Algorithm):
    """Of the tokens that the step would take further from mu, which sampled them, those of the largest log(pi/mu) are
    left out, as few as bring the second moment of the others to a bound; nothing is clipped."""

    summary: ClassVar[str] = "A = (r - mean) / std, tokens of outlying ratios left out"

    second_moment: float = Field(
        0.04,
        gt=0,
        description="bound of the mean of log(pi/mu)^2 of tokens that move further away; the largest are left out "
        "until it holds",
    )

    def advantages(self, batch: Batch) -> Floats:
        """A = (r - mean) / (std + 1e-6) of the group."""
        return standardised(batch.returns)

    def token_mask(self, log_ratio: Floats, advantage: Floats) -> NDArray[np.bool_]:
        """The M tokens less, of those with A log(pi/mu) > 0, the ones of the largest log(pi/mu)^2, of equal ones the
        later first, until the mean of it over what is left of these is at most ``second_moment``."""
        further = np.flatnonzero(advantage * log_ratio > 0)
        squares = log_ratio[further].astype(np.float64) ** 2
        order = np.argsort(squares, kind="stable")
        means = np.cumsum(squares[order]) / np.arange(1, len(order) + 1)  # the means of growing squares grow
        kept = np.ones(len(log_ratio), dtype=np.bool_)
        kept[further[order[means > self.second_moment]]] = False
        return kept

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """-rho * A."""
        return TokenLoss(-ratio_of(tokens) * tokens.advantage)


ALGORITHM = M2po
