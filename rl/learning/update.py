"""One update of a policy on a batch: what its optimizer steps have in common.

Legend: P groups, G completions per group, T tokens of a completion.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from rl.algorithms.algorithm import Algorithm, Floats
from rl.learning import corrections
from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.kl_config import KlConfig
from rl.learning.logprobs import completion_logprobs, token_scores
from rl.learning.objective import PolicyObjective, interpolation
from rl.learning.optimized import OptimizerStep
from rl.learning.packing import Packed
from rl.learning.passes import Accumulation
from rl.model.policy import Policy
from rl.records import Batch


def mean_of(steps: Sequence[OptimizerStep]) -> dict[str, float]:
    """The metrics of an update. The mismatch is that of its first optimizer step, which the others have caused."""
    tokens = sum(step.tokens for step in steps)
    sums = {name: sum(step.sums[name] for step in steps) for name in steps[0].sums}
    of_correction = corrections.figures(sums, tokens)
    found = {f"policy/{name}": total / tokens for name, total in sums.items()}
    found["policy/mismatch_kl"] = steps[0].sums["mismatch_kl"] / steps[0].tokens
    return {
        "loss/policy": sum(step.loss for step in steps) / len(steps),
        "policy/grad_norm": sum(step.norm for step in steps) / len(steps),
        **found,
        **of_correction,
    }


def divided(groups: Sequence[int], parts: int, step: int, epoch: int) -> Iterator[list[int]]:
    """Groups in so many parts of about the same size, drawn anew in each epoch of each step where there are several."""
    parts = min(parts, len(groups))
    if parts == 1:
        yield list(groups)
        return
    order = np.random.default_rng((step, epoch)).permutation(len(groups))
    for part in np.array_split(order, parts):
        yield [groups[index] for index in sorted(part.tolist())]


def tensor(of: NDArray[Any]) -> Tensor:
    """What a formula gave, whatever numbers these are and however they lie, in float32."""
    return torch.from_numpy(np.ascontiguousarray(of, dtype=np.float32))


def adapted(coefficient: float, config: KlConfig, measured: float) -> float:
    """The coefficient of the divergence for the next step: raised by up to 2% where more than ``target`` was measured,
    and lowered where less (Ziegler et al., arXiv 1909.08593, section 2.2, with K = 0.1)."""
    if config.target is None or not np.isfinite(measured):
        return coefficient
    error = min(max((measured - config.target) / config.target, -0.2), 0.2)
    return coefficient * (1 + 0.1 * error)


class Update:
    """A batch and how it is learned from; its steps are taken one after the other."""

    def __init__(
        self,
        policy: Policy,
        accumulation: Accumulation,
        batch: Batch,
        config: AlgorithmSpec,
        *,
        step: int,
        temperature: float,
        max_tokens: int,
        coefficient: float,
        standing: int,
    ) -> None:
        """``batch``: as `shaped` makes it; ``step``: the version that it is learned by; ``coefficient``: of the
        divergence from the reference; ``standing``: see `Accumulation.add`."""
        self._policy, self._accumulation, self._standing = policy, accumulation, standing
        self.batch, self.config = batch, config
        self._algorithm = config.algorithm
        self._step, self._temperature, self._max_tokens, self._coefficient = step, temperature, max_tokens, coefficient
        self._advantage = torch.zeros(batch.rollouts.tokens.shape)
        self._proximal: Floats | None = None

    def prepare(self, used: Sequence[int]) -> None:
        """Compute what holds for all steps: the advantages of these groups, and the proximal policy's log-probs."""
        found = tensor(self._algorithm.advantages(self.batch.select(used)))
        self._advantage[used] = found if found.dim() == 3 else found[..., None].expand_as(self._advantage[used])
        if self.config.minibatches * self.config.epochs > 1 and self.config.proximal == "recomputed":
            self._proximal = self._logprobs(used)

    def _logprobs(self, groups: Sequence[int]) -> Floats:
        """[P, G, T] of the policy as it is now."""
        return completion_logprobs(self._policy, self.batch.rollouts, self._temperature, self._accumulation, groups)

    def _kept(self, part: Sequence[int]) -> Tensor | None:
        """[P, G, T]: which tokens of these groups the algorithm learns from, None for all."""
        if type(self._algorithm).token_mask is Algorithm.token_mask:
            return None
        among = self.batch.rollouts.trained & np.isin(np.arange(len(self.batch)), part)[:, None, None]
        log_ratio = self._logprobs(part) - self.batch.rollouts.logprobs
        kept = np.ones(among.shape, dtype=np.bool_)
        kept[among] = self._algorithm.token_mask(log_ratio[among], self._advantage.numpy()[among])
        return torch.from_numpy(kept)

    def objective(self, part: Sequence[int], progress: float) -> PolicyObjective:
        """That of an optimizer step on these groups, after ``progress`` of those of the batch."""
        rollouts, config = self.batch.rollouts, self.config
        weight = torch.zeros(self.batch.rewards.shape)
        weight[part] = tensor(self._algorithm.token_weights(rollouts.trained_lengths[part], self._max_tokens))
        alpha = None
        if config.proximal == "interpolated":
            alpha = torch.from_numpy(interpolation(rollouts, self._step, progress))
        elif config.proximal == "recomputed" and self._proximal is None:
            alpha = torch.ones_like(self._advantage)  # the policy is still the proximal one
        reference = self.batch.reference_logprobs
        return PolicyObjective(
            algorithm=self._algorithm,
            advantage=self._advantage,
            weight=weight[..., None].expand_as(self._advantage),
            behaviour=torch.from_numpy(rollouts.logprobs),
            proximal=None if self._proximal is None else torch.from_numpy(self._proximal),
            alpha=alpha,
            importance_cap=config.importance_bound,
            correction=config.correction,
            kept=self._kept(part),
            reference=None if reference is None else torch.from_numpy(reference),
            estimator=config.kl.chosen,
            coefficient=0.0 if config.kl.in_reward else self._coefficient,
            entropy=config.entropy,
        )

    def backward(self, objective: PolicyObjective, part: Sequence[int], scale: float) -> tuple[dict[str, float], str]:
        """Add ``scale`` times the loss's gradient to the parameters'. Returns the loss and each metric, as sums over
        tokens, and what is to be said of memory."""

        def add(packed: Packed, checkpointing: bool) -> dict[str, float]:
            of_pass = objective.on(packed, scale)
            logprobs, entropy = token_scores(
                self._policy,
                packed,
                self._temperature,
                of_pass.loss,
                entropy_weights=of_pass.entropy_weights,
                before=of_pass.see if objective.by_sequence else None,
                checkpointing=checkpointing,
            )
            return of_pass.sums(logprobs, entropy)

        return self._accumulation.add(self.batch.rollouts, part, add, self._standing)
