"""RLOO: REINFORCE Leave-One-Out (Kool et al. 2019; Ahmadian et al., arXiv 2402.14740, equation 9)."""

from typing import ClassVar

import numpy as np

from rl.algorithms.algorithm import Floats, centred
from rl.algorithms.reinforce import Reinforce
from rl.records import Batch


class Rloo(Reinforce):
    """The baseline of a completion is the mean of the others of its group."""

    summary: ClassVar[str] = "A = r - mean(the others of its group)"

    def advantages(self, batch: Batch) -> Floats:
        """A = r - mean of the others = n / (n - 1) * (r - mean(group)), with n the rewards of the group that are known;
        0 where there is no other."""
        known = (~np.isnan(batch.returns)).sum(axis=1, keepdims=True)
        return np.asarray(centred(batch.returns) * known / np.maximum(known - 1, 1), dtype=np.float32)


ALGORITHM = Rloo
