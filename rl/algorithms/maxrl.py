"""MaxRL: Maximum Likelihood Reinforcement Learning (Tajwar, Zeng et al., arXiv 2602.02710)."""

from typing import ClassVar

import numpy as np

from rl.algorithms.algorithm import Floats, centred, group_means
from rl.algorithms.reinforce import Reinforce
from rl.records import Batch

LEAST = 1e-6  # of a mean that advantages are divided by


class MaxRl(Reinforce):
    """The advantage is divided by the mean reward in place of the deviation, so that with many completions the gradient
    is that of log P(right): hard problems weigh more. For rewards that are not negative."""

    summary: ClassVar[str] = "A = (r - mean) / mean(group), towards the likelihood of a right answer"

    def advantages(self, batch: Batch) -> Floats:
        """A = (r - mean) / mean of the group; 0 for a group whose mean reward is not positive, in which nothing was
        right."""
        means = group_means(batch.returns)
        return np.where(means > LEAST, centred(batch.returns) / np.maximum(means, LEAST), 0).astype(np.float32)


ALGORITHM = MaxRl
