"""The critic's learner: a value model that is trained towards the returns of a batch.

Legend: P groups, G completions per group, T tokens of a completion, N tokens of a forward pass.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl.learning.critic_config import OF_CRITIC, CriticConfig
from rl.learning.optimized import Optimized, OptimizerStep
from rl.learning.packing import Packed
from rl.learning.states import predicting_states
from rl.learning.update import divided, tensor
from rl.model.blocks import in_blocks
from rl.model.value import ValueModel
from rl.records import Batch, Learned, Rollouts


def token_values(model: ValueModel, packed: Packed) -> Tensor:
    """[N] the value of the state before each packed completion token, without a gradient."""
    with in_blocks(model.model, packed.mask), torch.no_grad():
        return model.values(predicting_states(model, packed, trained=False))


def value_loss(values: Tensor, before: Tensor, returns: Tensor, clip: float | None) -> Tensor:
    """[N] (V - R)^2 / 2 of values that were ``before`` the update; with ``clip`` the larger one of that and what it is
    of V clipped to before +- clip (PPO's value clipping: Engstrom et al., arXiv 2005.12729, section 3)."""
    error = (values - returns) ** 2
    if clip is not None:
        error = error.maximum((before + (values - before).clamp(-clip, clip) - returns) ** 2)
    return error / 2


class CriticLearner(Optimized[ValueModel]):
    """A value model being trained."""

    def update(
        self,
        batch: Batch,
        targets: NDArray[np.float32],
        config: CriticConfig,
        *,
        monte_carlo: NDArray[np.float32] | None = None,
    ) -> Learned:
        """Train towards the ``targets`` [P, G, T] of the tokens of completions with a verdict: see
        `Algorithm.value_targets`. The version advances whatever happens. What the values explain is the variance of the
        ``monte_carlo`` returns [P, G, T], where they are given: targets of GAE hold the values themselves.

        A non-finite loss or gradient is refused, and what was left of the batch with it: weights and optimizer stay,
        ``Learned.refused`` says why.
        """
        batch = replace(batch, rollouts=batch.rollouts.only(~np.isnan(batch.rewards)))
        used = [int(group) for group in np.flatnonzero(batch.rollouts.trained.any(axis=(1, 2)))]
        learned = Learned(self.step + 1, applied=False)
        if used:
            learned = self._learn(batch, used, targets, targets if monte_carlo is None else monte_carlo, config)
        self.refusals = self.refusals + 1 if learned.refused else 0
        self.step += 1
        self.learned = replace(learned, refusals=self.refusals, groups=len(used))
        return self.learned

    def _learn(
        self,
        batch: Batch,
        used: Sequence[int],
        targets: NDArray[np.float32],
        monte_carlo: NDArray[np.float32],
        config: CriticConfig,
    ) -> Learned:
        values, rollouts = batch.values, batch.rollouts
        assert values is not None
        steps: list[OptimizerStep] = []
        for epoch in range(config.epochs):
            for part in divided(used, config.minibatches, self.step, epoch):
                if not steps or not steps[-1].refused:
                    steps.append(self._optimize(rollouts, part, values, targets, config.value_clip))
        trained = rollouts.trained
        refused = steps[-1].refused
        return Learned(
            self.step + 1,
            applied=not steps[0].refused,
            refused=refused and f"the {refused} of {OF_CRITIC} {self.step + 1} is not finite",
            said="; ".join(dict.fromkeys(step.said for step in steps if step.said)),
            metrics={
                "critic/loss": float(np.mean([step.loss for step in steps])),
                "critic/grad_norm": float(np.mean([step.norm for step in steps])),  # before clipping
                "critic/explained_variance": explained_variance(values[trained], monte_carlo[trained]),
                "critic/value_mean": float(values[trained].mean(dtype=np.float64)),
            },
        )

    def _optimize(
        self,
        rollouts: Rollouts,
        part: Sequence[int],
        values: NDArray[np.float32],
        targets: NDArray[np.float32],
        clip: float | None,
    ) -> OptimizerStep:
        """One optimizer step on the mean over the tokens of these groups."""
        device, count = self.policy.device, int(rollouts.trained[list(part)].sum())
        was, aim = (tensor(each).to(device) for each in (values, targets))

        def backward(scale: float) -> tuple[dict[str, float], str]:
            def add(packed: Packed, checkpointing: bool) -> dict[str, float]:
                before, target = (of[packed.group, packed.sample, packed.token_index] for of in (was, aim))
                with in_blocks(self.policy.model, packed.mask), torch.enable_grad():
                    hidden = predicting_states(self.policy, packed, trained=True, checkpointing=checkpointing)
                    found = self.policy.values(hidden)
                    loss = value_loss(found, before.to(found.dtype), target.to(found.dtype), clip).sum() / count
                    (scale * loss).backward()  # type: ignore[no-untyped-call]
                return {"loss": float(loss.detach())}

            return self.accumulation.add(rollouts, part, add, self.standing)

        return self.scaled_step(backward, count)


def explained_variance(values: NDArray[np.float32], returns: NDArray[np.float32]) -> float:
    """1 - Var(returns - values) / Var(returns) over [N] tokens: 1 of perfect values, 0 of constant ones; NaN where all
    returns are the same, or one is not finite."""
    if not np.isfinite(returns).all():
        return math.nan
    spread = returns.var(dtype=np.float64)
    return float(1 - (returns.astype(np.float64) - values).var() / spread) if spread > 0 else math.nan
