"""ReMax (Li et al., arXiv 2310.10505, algorithm 1): the reward of the greedy completion is the baseline."""

from typing import ClassVar

import numpy as np

from rl.algorithms.algorithm import Floats
from rl.algorithms.reinforce import Reinforce
from rl.records import Batch


class ReMax(Reinforce):
    """A = r - r(greedy completion of the same prompt): one more completion a prompt, and no need of a group."""

    summary: ClassVar[str] = "A = r - r(greedy completion)"
    needs: ClassVar[frozenset[str]] = frozenset({"baseline"})
    every_group: ClassVar[bool] = True

    def advantages(self, batch: Batch) -> Floats:
        """A = r - b, where both are known, else 0."""
        assert batch.baseline is not None
        return np.asarray(np.nan_to_num(batch.returns - batch.baseline[:, None]), dtype=np.float32)


ALGORITHM = ReMax
