"""GSPO: Group Sequence Policy Optimization (Zheng et al., arXiv 2507.18071)."""

from typing import ClassVar

from pydantic import Field

from rl.algorithms.algorithm import Aggregation, Algorithm, Floats, TokenLoss, Tokens, standardised
from rl.algorithms.ratios import LARGEST, clipped
from rl.records import Batch


class Gspo(Algorithm):
    """The ratio is that of the whole completion, s = (pi(y) / old(y))^(1 / |y|), and is clipped as one."""

    summary: ClassVar[str] = "A = (r - mean) / std, the clipped ratio of whole completions"
    aggregation: ClassVar[Aggregation] = "sequence"  # 1 / |y| of each ratio, the mean over completions (equation 5)
    by_sequence: ClassVar[bool] = True
    trust_region: ClassVar[bool] = True

    clip_low: float = Field(3e-4, gt=0, lt=1, description="the ratio s is clipped from below to 1 - clip_low")
    clip_high: float = Field(4e-4, gt=0, description="and from above to 1 + clip_high")

    def advantages(self, batch: Batch) -> Floats:
        """A = (r - mean) / (std + 1e-6) of the group (equation 6)."""
        return standardised(batch.returns)

    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """-min(s * A, clip(s, 1 - eps_low, 1 + eps_high) * A), each token's share of it: s is written as
        sg(s) * pi / sg(pi) of the token, whose sum over a completion has the value and the gradient of s (GSPO-token,
        equations 13 to 17)."""
        assert tokens.sequence_log_ratio is not None
        of_token = tokens.logprobs - tokens.logprobs.detach()
        ratio = (tokens.sequence_log_ratio + of_token).clamp(max=LARGEST).exp()
        return clipped(ratio, tokens.advantage, self.clip_low, self.clip_high)


ALGORITHM = Gspo
