"""ReMax (Li et al., arXiv 2310.10505, algorithm 1): the reward of the greedy completion is the baseline."""

from typing import ClassVar

import numpy as np
from pydantic import Field

from rl.algorithms.algorithm import Floats
from rl.algorithms.reinforce import Reinforce
from rl.records import Batch


class ReMax(Reinforce):
    """A = r - r(greedy completion of the same prompt): one more completion a prompt, and no need of a group.

    The paper samples from the policy that it updates. For batches of older versions the importance weight is cut later
    than elsewhere: greedy completions are right more often, so that the mean of A is below 0, and a token that has
    become likely, cut, is punished less than all others, whatever it is worth
    (docs/benchmarks/learning.md#algorithms)."""

    summary: ClassVar[str] = "A = r - r(greedy completion)"
    needs: ClassVar[frozenset[str]] = frozenset({"baseline"})
    every_group: ClassVar[bool] = True

    ratio_cap: float = Field(5.0, gt=0, description="cap on a token's weight pi/old")

    def advantages(self, batch: Batch) -> Floats:
        """A = r - b, where both are known, else 0."""
        assert batch.baseline is not None
        return np.asarray(np.nan_to_num(batch.returns - batch.baseline[:, None]), dtype=np.float32)


ALGORITHM = ReMax
