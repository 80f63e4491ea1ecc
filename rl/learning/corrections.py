"""Corrections for tokens that an older policy sampled: weights, and apart from them masks. A weight multiplies a
token's term, a mask takes it out of the loss. Neither changes what terms are divided by, so that the fewer tokens are
kept, the smaller the gradient is.

Legend: N completion tokens; mu: the policy that sampled them; rho: the ratio to mu of the policy that is trained, or of
the proximal one (`AlgorithmConfig.proximal`).
"""

import math
from collections.abc import MutableMapping

import torch
from torch import Tensor

from rl.algorithms.ratios import LARGEST
from rl.learning.correction_config import CorrectionConfig

KEPT, WEIGHTS, SQUARES = "correction/kept", "correction/weights", "correction/squares"  # sums over tokens


def truncated(log_ratio: Tensor, cap: float) -> Tensor:
    """[N] weights min(rho, cap): truncated importance sampling (Espeholt et al., arXiv 1802.01561, equation 1; between
    sampler and trainer Yao et al., "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training", 2025)."""
    return log_ratio.clamp(max=LARGEST).exp().clamp(max=cap)


def within(log_ratio: Tensor, low: float, high: float) -> Tensor:
    """[N]: whether low <= rho <= high. Of a token's own ratio it is IcePop's mask (Ring-1T, arXiv 2510.18855), of the
    geometric mean over its completion that of whole sequences (Liu, Li et al., "When Speed Kills Stability", 2025, part
    3): a product, or the worst token, would leave out completions for being long. What is not a number is kept, so that
    the step is refused."""
    return ~((log_ratio < (math.log(low) if low else -math.inf)) | (log_ratio > math.log(high)))


def near(logprobs: Tensor, behaviour: Tensor, advantage: Tensor, low: float, high: float) -> Tensor:
    """[N]: whether pi - mu <= high where the advantage is positive, and >= -low elsewhere: the total variation of a
    token against all others, in the direction of the update (DPPO, arXiv 2602.04879)."""
    moved = logprobs.exp() - behaviour.exp()
    return ~torch.where(advantage > 0, moved > high, moved < -low)


def completion_means(values: Tensor, completion: Tensor) -> Tensor:
    """[N] mean of ``values`` [N] over the tokens of each token's ``completion`` [N]."""
    sums, lengths = values.new_zeros(2, int(completion.max()) + 1)
    sums.index_add_(0, completion, values)
    lengths.index_add_(0, completion, torch.ones_like(values))
    means: Tensor = (sums / lengths.clamp(min=1))[completion]
    return means


def kept_by(
    correction: CorrectionConfig, log_ratio: Tensor, logprobs: Tensor, behaviour: Tensor, advantage: Tensor
) -> Tensor:
    """[N]: which tokens a correction keeps, by log rho, of its completion where that counts, or by log pi and log mu
    and the advantage."""
    low, high = correction.bounds
    if correction.kind == "divergence":
        return near(logprobs, behaviour, advantage, low, high)
    return within(log_ratio, low, high) if correction.masks else torch.ones_like(log_ratio, dtype=torch.bool)


def figures(sums: MutableMapping[str, float], tokens: int) -> dict[str, float]:
    """Share of the tokens that were kept, and the effective sample size of their weights as a share of them (Kish,
    1965): (sum w)^2 / (N sum w^2), which is 1 where all weigh alike, and 0 where none is left. Takes out of ``sums``
    what they follow from; {} where there was no correction."""
    if KEPT not in sums:
        return {}
    kept, weights, squares = (sums.pop(name) for name in (KEPT, WEIGHTS, SQUARES))
    return {"correction/kept": kept / tokens, "correction/ess": weights**2 / (tokens * squares) if squares else 0.0}
