"""An algorithm of the user's that reads greedy completions and, as is the default, learns from groups whose
rewards differ."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from rl.algorithms.own import OwnAlgorithmError
from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.dry_run import try_algorithm
from rl.learning.learner import Learner
from rl.records import Batch
from tests.rl.updates import PLAIN, Make

TEXT = """
import numpy as np
from rl.algorithms.reinforce import Reinforce
class Own(Reinforce):
    needs = frozenset({"baseline"})
    def advantages(self, batch):
        return np.where(np.isnan(batch.returns), 0, batch.returns - batch.baseline[:, None]).astype(np.float32)
"""


def test_a_group_whose_greedy_completion_was_not_judged_takes_no_part_in_an_own_algorithm_either(
    make_policy: Make, drawn: Callable[..., Batch]
) -> None:
    own = AlgorithmSpec(name="own.py:Own", text=TEXT)
    try_algorithm(own)
    learner = Learner(make_policy(eager=4.0), PLAIN)
    batch = drawn(learner.policy)  # groups 0 and 2 vary
    learned = learner.update(replace(batch, baseline=np.array([math.nan, 0.5, 0.5], np.float32)), own, 1.0)
    assert (learned.refused, learned.groups) == ("", 1)


def test_completions_that_are_too_long_are_not_punished_beside_a_greedy_one() -> None:
    spec = AlgorithmSpec(name="own.py:Own", text=TEXT, overlong=4)
    with pytest.raises(OwnAlgorithmError, match=r"^algorithm.overlong: own.py:Own subtracts the reward of a greedy"):
        _ = spec.algorithm
