"""A critic's update on completions of several turns."""

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from rl.algorithms.gae import returns_to_go
from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.critic import CriticLearner
from rl.learning.critic_config import CriticConfig
from rl.records import Batch
from tests.rl.learning.test_critic import one_by_one, with_values
from tests.rl.turns import REWARDS, conversations
from tests.rl.updates import PLAIN, Make, compare


def test_a_critic_learns_from_the_states_before_what_the_policy_wrote(
    make_policy: Make, exactly: Callable[[PreTrainedModel], PreTrainedModel]
) -> None:
    batch = conversations(make_policy("gpt2"), 0.3)
    targets = AlgorithmSpec(name="ppo").algorithm.value_targets(batch)
    assert targets.any()
    learned = batch.rollouts.trained & ~np.isnan(REWARDS)[..., None]
    found = []
    for other in (False, True):
        model = with_values(make_policy("gpt2"))
        expected = exactly(model.model)
        if other:
            random = np.random.default_rng(5)
            noise = random.normal(size=targets.shape).astype(np.float32)
            batch = replace(batch, values=np.where(batch.rollouts.trained, batch.values, noise))
            targets = np.where(batch.rollouts.trained, targets, noise)
        learner = CriticLearner(model, PLAIN)
        found.append(_critic_gradient(learner, batch, targets))
        where = torch.from_numpy(learned)
        error = one_by_one(expected, batch.rollouts)[where] - torch.from_numpy(targets[learned])
        loss = (error**2 / 2).mean()
        compare(found[-1], expected, loss)
        assert learner.learned is not None
        assert learner.learned.metrics["critic/value_mean"] == pytest.approx(batch.values[learned].mean(), rel=1e-5)
    assert all(torch.equal(*pair) for pair in zip(*found, strict=True))


def _critic_gradient(learner: CriticLearner, batch: Batch, targets: NDArray[np.float32]) -> list[Tensor]:
    found: list[Tensor] = []
    step = learner.optimizer_step

    def watched(scale: float = 1.0, *, loss_scale: float = 1.0) -> float:
        found[:] = [torch.zeros_like(p) if p.grad is None else deepcopy(p.grad) for p in learner.parameters]
        return step(scale, loss_scale=loss_scale)

    learner.optimizer_step = watched  # type: ignore[method-assign]
    learner.update(batch, targets, CriticConfig(minibatches=1, value_clip=None), monte_carlo=returns_to_go(batch))
    return found
