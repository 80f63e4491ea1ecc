"""MaxRL: Maximum Likelihood Reinforcement Learning (Tajwar, Zeng et al., arXiv 2602.02710)."""

from typing import ClassVar

import numpy as np

from rl.algorithms.algorithm import Floats, centred, group_means
from rl.algorithms.reinforce import Reinforce
from rl.records import Batch

LEAST = 1e-6  # of a mean that advantages are divided by


class MaxRl(Reinforce):
    """The advantage is divided by the mean reward in place of the deviation, so that with many completions the gradient
    is that of log P(right): hard problems weigh more."""

    summary: ClassVar[str] = "A = (r - mean) / mean(group), towards the likelihood of a right answer"

    def advantages(self, batch: Batch) -> Floats:
        """A = (r - mean) / mean of the group; 0 for a group whose mean reward is not positive, in which nothing was
        right. Of rewards that are not negative A lies in [-1, n - 1], with n of them known; where penalties make others
        it is held there."""
        means = group_means(batch.returns)
        others = (~np.isnan(batch.returns)).sum(axis=1, keepdims=True) - 1
        found = np.where(means > LEAST, centred(batch.returns) / np.maximum(means, LEAST), 0)
        return np.clip(found, -1, np.maximum(others, 0)).astype(np.float32)


ALGORITHM = MaxRl
