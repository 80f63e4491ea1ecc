"""What the papers say of the algorithms, in float64: another way to compute what `rl.algorithms` does."""

import math
import statistics
from collections.abc import Callable
from typing import Literal, NamedTuple

# advantages of a group, from its rewards and all of the batch


def centred(group: list[float], _: list[float]) -> list[float]:
    return [reward - math.fsum(group) / len(group) for reward in group]


def leave_one_out(group: list[float], _: list[float]) -> list[float]:
    return [reward - (math.fsum(group) - reward) / (len(group) - 1) for reward in group]


def standardised(group: list[float], everything: list[float]) -> list[float]:
    return [gap / (statistics.stdev(group) + 1e-6) for gap in centred(group, everything)]


def by_the_mean(group: list[float], everything: list[float]) -> list[float]:
    mean = math.fsum(group) / len(group)
    return [gap / mean if mean else 0.0 for gap in centred(group, everything)]


def over_the_batch(group: list[float], everything: list[float]) -> list[float]:
    whole = math.fsum(everything) / len(everything)
    return [(reward - whole) / (statistics.pstdev(everything) + 1e-8) for reward in group]


class Paper(NamedTuple):
    """What its paper says of an algorithm."""

    advantages: Callable[[list[float], list[float]], list[float]] | None  # None: of more than rewards, tested apart
    weights: Literal["token", "sequence", "constant"] = "token"  # what is averaged over
    weighted: bool = False  # its loss is -A sg(w) log pi: nothing flows through the weight


PAPERS = {
    "cispo": Paper(standardised, weighted=True),
    "dapo": Paper(standardised),
    "dr_grpo": Paper(centred, "constant"),
    "grpo": Paper(standardised, "sequence"),
    "gspo": Paper(standardised, "sequence", weighted=True),
    "m2po": Paper(standardised),
    "maxrl": Paper(by_the_mean, weighted=True),
    "ppo": Paper(None),
    "reinforce": Paper(centred, weighted=True),
    "reinforce_pp": Paper(over_the_batch),
    "remax": Paper(None, weighted=True),
    "rloo": Paper(leave_one_out, weighted=True),
    "sapo": Paper(standardised, "sequence"),
}
