"""Learning-rate schedules: the share of `optimizer.lr` that an update takes, beside the warm-up."""

import math
from typing import Literal

Decay = Literal["none", "linear", "cosine"]


def decayed(decay: Decay, step: int, steps: int) -> float:
    """For update ``step`` (from 0) of ``steps``: 1 at the first; linear and cosine fall towards 0, which they would
    reach one update after the last."""
    done = min(step, steps - 1) / steps
    match decay:
        case "none":
            return 1.0
        case "linear":
            return 1 - done
        case "cosine":
            return (1 + math.cos(math.pi * done)) / 2
