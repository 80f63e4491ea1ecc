"""The loss of one optimizer step: the algorithm's, the divergence from the reference, and the entropy bonus.

Legend: P groups, G completions per group, T tokens of a completion, N completion tokens of a forward pass, C of them.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl.algorithms import Algorithm
from rl.algorithms.algorithm import Floats, Tokens
from rl.algorithms.ratios import LARGEST
from rl.learning.correction_config import CorrectionConfig
from rl.learning.corrections import KEPT, SQUARES, WEIGHTS, completion_means, kept_by, truncated
from rl.learning.packing import Packed
from rl.records import Rollouts

# metrics that `sums` makes of every update that has them, and the norm of its gradient: names no algorithm's may have
EVERY = ("loss", "entropy", "mismatch_kl", "kl_reference", "importance_weight", "masked_fraction", "grad_norm")


def divergence(logprobs: Tensor, reference: Tensor, estimator: str) -> Tensor:
    """[N] KL(pi || reference) of sampled tokens: see `KlConfig`."""
    gap = (logprobs - reference).clamp(min=-LARGEST)
    if estimator == "k1":
        return gap
    return gap**2 / 2 if estimator == "k2" else torch.expm1(-gap) + gap


def interpolation(rollouts: Rollouts, step: int, progress: float) -> Floats:
    """[P, G, T]: alpha of log prox = log mu + alpha (log pi - log mu), where the proximal policy is version ``step``,
    mu the version of each token, and pi is ``progress`` versions past ``step`` (AReaL, arXiv 2505.24298, and its
    approximation by versions): alpha = (step - v_mu) / (step + progress - v_mu), and 0 where both are 0."""
    age = np.asarray(step - rollouts.versions, dtype=np.float32)
    return np.asarray(np.divide(age, age + progress, out=np.zeros_like(age), where=age + progress > 0))


@dataclass(frozen=True)
class PolicyObjective:
    """What an optimizer step needs to know of its tokens: tensors [P, G, T] of a batch, or [N] of a forward pass."""

    algorithm: Algorithm
    advantage: Tensor
    weight: Tensor  # of each token in the loss
    behaviour: Tensor  # log mu
    proximal: Tensor | None = None  # log of the proximal policy, where it was computed
    alpha: Tensor | None = None  # where it is interpolated: see `interpolation`
    importance_cap: float = math.inf
    correction: CorrectionConfig = field(default_factory=CorrectionConfig)
    kept: Tensor | None = None  # whose policy loss counts; None for all
    reference: Tensor | None = None  # log-probs under the reference model
    estimator: str = "k3"  # of the divergence: see `KlConfig`
    coefficient: float = 0.0  # of the divergence in the loss
    entropy: float = 0.0  # of the entropies in the objective

    @property
    def by_sequence(self) -> bool:
        """Whether a token's term depends on the others of its completion."""
        return self.algorithm.by_sequence or self.correction.kind == "sequence_mask"

    def on(self, packed: Packed, scale: float) -> "PassObjective":
        """That of the tokens of a forward pass, on its device; its loss is ``scale`` times as large."""
        where, device = (packed.group.cpu(), packed.sample.cpu(), packed.token_index.cpu()), packed.targets.device
        found = {each.name: getattr(self, each.name) for each in fields(self)}
        tensors: dict[str, Any] = {name: of[where].to(device) for name, of in found.items() if isinstance(of, Tensor)}
        completion = packed.group * self.advantage.shape[1] + packed.sample
        return PassObjective(replace(self, **tensors), completion, scale)


class PassObjective:
    """The objective of a forward pass, as a loss of the log-probs of its N tokens by parts."""

    def __init__(self, of: PolicyObjective, completion: Tensor, scale: float) -> None:
        """``completion``: [N] which completion each token is of."""
        self._of, self._completion, self._scale = of, completion, scale
        self._sequence_log_ratio: Tensor | None = None  # [N]
        self._sequence_gap: Tensor | None = None  # [N]: see `_gap`, the mean over the token's completion

    @property
    def entropy_weights(self) -> Tensor | None:
        """[N] weights of the entropies, None without a bonus."""
        return self._of.weight * (self._scale * self._of.entropy) if self._of.entropy else None

    def see(self, logprobs: Tensor) -> None:
        """Take the log-probs [N] of all tokens, from which the ratios of whole completions follow."""
        old = self._old(logprobs, slice(None))
        if self._of.algorithm.by_sequence:
            self._sequence_log_ratio = completion_means(logprobs - old, self._completion)
        if self._of.correction.kind == "sequence_mask":
            self._sequence_gap = completion_means(self._gap(logprobs, old, slice(None)), self._completion)

    def loss(self, logprobs: Tensor, part: slice) -> Tensor:
        """The loss of a part of the tokens from their log-probs [C]."""
        value, _, apart = self._terms(logprobs, part)
        if apart is not None and self._of.coefficient:
            value = value + self._of.coefficient * apart
        return self._scale * (self._of.weight[part] * value).sum()

    def sums(self, logprobs: Tensor, entropy: Tensor) -> dict[str, float]:
        """The loss of the algorithm, and sums over tokens of each metric, at these log-probs [N] and entropies [N]."""
        with torch.no_grad():
            value, metrics, apart = self._terms(logprobs, slice(None))
            gap = logprobs - self._of.behaviour
            # mismatch_kl: KL(mu || pi) on the sampled tokens, k3 estimate, nats
            seen: dict[str, Tensor] = {"entropy": entropy, "mismatch_kl": torch.expm1(gap) - gap, **metrics}
            if apart is not None:
                seen["kl_reference"] = apart
            if KEPT in metrics:
                seen[WEIGHTS] = self._weights(logprobs)
                seen[SQUARES] = seen[WEIGHTS].square()
            added = torch.stack([(self._of.weight * value).sum(), *(of.sum().float() for of in seen.values())])
        return dict(zip(("loss", *seen), added.tolist(), strict=True))

    def _weights(self, logprobs: Tensor) -> Tensor:
        """[N] weight of each token in the gradient: that of its term of the policy loss by log pi, where |A| is 1. So
        the ratio counts as the algorithm cuts, clips or gates it, times old/mu as that is cut, and 0 where a token is
        left out."""
        one = replace(self._of, advantage=torch.where(self._of.advantage > 0, 1.0, -1.0), reference=None)
        signed = PassObjective(one, self._completion, self._scale)
        signed._sequence_log_ratio, signed._sequence_gap = self._sequence_log_ratio, self._sequence_gap
        with torch.enable_grad():
            at = logprobs.detach().requires_grad_()
            value, _, _ = signed._terms(at, slice(None))
            (gradient,) = torch.autograd.grad(value.sum(), at)
        return gradient.abs()

    def _terms(self, logprobs: Tensor, part: slice) -> tuple[Tensor, Mapping[str, Tensor], Tensor | None]:
        """[C] terms of the policy loss, the algorithm's metrics, and the divergence from the reference. Raises
        ValueError where a metric of the algorithm has a name of `EVERY`: it would take the place of that one."""
        of, old = self._of, self._old(logprobs, part)
        ratio = None if self._sequence_log_ratio is None else self._sequence_log_ratio[part]
        found = of.algorithm.token_loss(Tokens(logprobs, old, of.advantage[part], ratio))
        value, metrics = found.value, dict(found.metrics)
        if taken := metrics.keys() & EVERY:
            name = type(of.algorithm).__name__
            raise ValueError(f"{name}.token_loss: metrics[{min(taken)!r}] is of every update; give another name")
        if self._decoupled:
            importance = truncated(self._gap(logprobs, old, part), math.inf)
            value = value * importance.clamp(max=of.importance_cap)
            metrics["importance_weight"] = importance
        if of.kept is not None:
            value = torch.where(of.kept[part], value, 0.0)
            metrics["masked_fraction"] = ~of.kept[part]
        if of.correction.kind != "none":
            kept = self._kept(logprobs.detach(), old, part)
            value = torch.where(kept, value, 0.0)
            metrics[KEPT] = kept
        if of.reference is None:
            return value, metrics, None
        return value, metrics, divergence(logprobs, of.reference[part], of.estimator)

    def _kept(self, logprobs: Tensor, old: Tensor, part: slice) -> Tensor:
        """[C]: which tokens the correction keeps."""
        of = self._of
        among = self._gap(logprobs, old, part) if self._sequence_gap is None else self._sequence_gap[part]
        return kept_by(of.correction, among, logprobs, of.behaviour[part], of.advantage[part])

    @property
    def _decoupled(self) -> bool:
        return self._of.proximal is not None or self._of.alpha is not None

    def _gap(self, logprobs: Tensor, old: Tensor, part: slice) -> Tensor:
        """[C] log-ratio to the behaviour policy that is corrected: of the proximal policy, where there is one."""
        return (old if self._decoupled else logprobs.detach()) - self._of.behaviour[part]

    def _old(self, logprobs: Tensor, part: slice) -> Tensor:
        """[C] log-probs of the old policy: of the behaviour policy, or the proximal one."""
        if self._of.proximal is not None:
            return self._of.proximal[part]
        mu = self._of.behaviour[part]
        return mu if self._of.alpha is None else mu + self._of.alpha[part] * (logprobs.detach() - mu)
