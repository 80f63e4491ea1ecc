"""Dr. GRPO: GRPO done right (Liu et al., arXiv 2503.20783, equation 3)."""

from typing import ClassVar

from rl.algorithms.algorithm import Aggregation, Floats, centred
from rl.algorithms.grpo import Grpo
from rl.records import Batch


class DrGrpo(Grpo):
    """GRPO without its two biases: no division by the deviation, and lengths count as they are."""

    summary: ClassVar[str] = "A = r - mean, divided by a constant length"
    aggregation: ClassVar[Aggregation] = "constant"

    def advantages(self, batch: Batch) -> Floats:
        """A = r - mean(group)."""
        return centred(batch.returns)


ALGORITHM = DrGrpo
