"""What the tests of the learner share: a batch to learn from, its gradient, and what an update changes."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel

from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.learner import Learner
from rl.learning.optimizer_config import OptimizerConfig
from rl.model.policy import Policy
from rl.records import Batch, Problem, Rollouts

Make = Callable[..., Policy]
Judged = Callable[..., Batch]
State = dict[str, Tensor]
MAX_TOKENS = 64  # at which completions were cut

REINFORCE = AlgorithmSpec(name="reinforce")
GRPO = AlgorithmSpec(name="grpo")
PLAIN = OptimizerConfig(lr=1e-3, warmup_steps=0)
REWARDS = [[1, 0, 0, 1], [1, 1, 1, 1], [0, 1, 0.5, 0]]  # the group in the middle does not vary
UNJUDGED = [(0, 3), (2, 0), (2, 2)]  # two with a verdict are left of the last group


def weights(learner: Learner) -> State:
    return {name: value.clone() for name, value in learner.policy.model.state_dict().items()}


def moments(learner: Learner) -> State:
    """The optimizers' state, by parameter and name."""
    return {
        f"{index}.{name}": torch.as_tensor(value).clone()
        for index, parameter in enumerate(learner.parameters)
        for optimizer in learner.optimizers
        for name, value in optimizer.state.get(parameter, {}).items()
    }


def identical(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def gradient_of(
    learner: Learner,
    batch: Batch,
    loss: AlgorithmSpec = REINFORCE,
    temperature: float = 1.0,
    max_tokens: int = MAX_TOKENS,
) -> list[Tensor]:
    """The gradient that the update arrives at, before clipping."""
    found: list[Tensor] = []
    optimizer_step = learner.optimizer_step

    def watched(scale: float = 1.0, *, loss_scale: float = 1.0) -> float:
        del found[:]
        found.extend(torch.zeros_like(p) if p.grad is None else p.grad / loss_scale for p in learner.parameters)
        return optimizer_step(scale, loss_scale=loss_scale)

    learner.optimizer_step = watched  # type: ignore[method-assign]
    learner.update(batch, loss, temperature, max_tokens)
    return found


def off_policy(batch: Batch, spread: float) -> Batch:
    """The same batch as if an older policy had sampled it."""
    noise = np.random.default_rng(0).normal(0, spread, batch.rollouts.logprobs.shape).astype(np.float32)
    return replace(batch, rollouts=replace(batch.rollouts, logprobs=batch.rollouts.logprobs + noise))


def judged(rewards: NDArray[np.float32], **more: Any) -> Batch:
    """A batch of completions of one token with these rewards [P, G]."""
    P, G = rewards.shape  # noqa: N806
    problem = Problem("1 + 1", "1 + 1", "test")
    rollouts = Rollouts.padded([problem] * P, [[1]] * P, [[2]] * (P * G))
    return Batch(rollouts, rewards, (("",) * G,) * P, **more)


def compare(found: list[Tensor], model: PreTrainedModel, loss: Tensor) -> None:
    loss.backward()
    expected = [parameter.grad for parameter in model.parameters()]
    assert torch.cat([one.flatten() for one in expected if one is not None]).norm() > 1e-3
    for one, other in zip(found, expected, strict=True):
        assert other is not None
        torch.testing.assert_close(one.double(), other, atol=1e-5, rtol=1e-4)


def normalised(rewards: list[float]) -> list[float]:
    mean = sum(rewards) / len(rewards)
    deviation = math.sqrt(sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1))
    return [(reward - mean) / (deviation + 1e-6) for reward in rewards]
