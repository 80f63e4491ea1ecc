"""Optimizer steps on given completions: the gradient of a loss of their scores.

A loss L of scores s_pg has the gradient sum_pg dL/ds_pg * ds_pg. The factors are known once the scores are, by a pass
without gradient, however the completions are divided into passes; of a loss that is linear in them before. A score is a
sum over tokens, so that each token's share is known as well, and no logits of all tokens are held (`rl.model.scores`).

Legend: P prompts, G completions of each, T completion tokens, N tokens of a forward pass, H hidden size.
"""

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import linear

from rl.learning.learner import Learner
from rl.learning.logprobs import token_scores
from rl.learning.objectives import Objective, Scored, Terms
from rl.learning.optimized import OptimizerStep
from rl.learning.packing import Packed
from rl.learning.passes import Accumulation
from rl.learning.states import predicting_states
from rl.model.blocks import in_blocks
from rl.model.policy import Policy
from rl.records import Learned, Rollouts


def fit(learner: Learner, shown: Rollouts, objective: Objective, reference: NDArray[np.float64] | None) -> Learned:
    """One optimizer step on these completions; the version advances whatever happens. ``reference`` [P, G]: their
    scores under the start model, where the objective compares with them.

    A non-finite loss or gradient is refused: weights and optimizer stay, ``Learned.refused`` says why.
    """
    step = optimize(learner, shown, objective, reference)
    learner.refusals = learner.refusals + 1 if step.refused else 0
    learner.step += 1
    metrics = {"loss": step.loss, **step.sums, "grad_norm": step.norm}
    learner.learned = Learned(
        learner.step,
        applied=not step.refused,
        refused=step.refused and f"the {step.refused} of update {learner.step} is not finite",
        refusals=learner.refusals,
        said=step.said,
        groups=len(shown.prompts),
        metrics={f"{objective.name}/{name}": of for name, of in metrics.items()},
    )
    return learner.learned


def optimize(
    learner: Learner,
    shown: Rollouts,
    objective: Objective,
    reference: NDArray[np.float64] | None = None,
    rate: float = 1.0,
) -> OptimizerStep:
    """One optimizer step at ``rate`` times the learning rate; the learner's version stays. Its ``sums`` are what the
    objective says of these completions before the step."""
    policy, said = learner.policy, ""
    known = np.zeros(shown.lengths.shape)
    if not objective.linear:
        known, said = scores(policy, learner.accumulation, shown, objective, standing=learner.standing)
    before = _scored(known, shown, reference)
    terms, share = objective.terms(before), objective.gradient(before)
    if not terms.loss.isfinite():
        metrics = _floats(terms)
        return OptimizerStep(metrics.pop("loss"), math.nan, metrics, terms.count, "loss", said)

    def backward(scale: float) -> tuple[dict[str, float], str]:
        found, more = scores(policy, learner.accumulation, shown, objective, share * scale, standing=learner.standing)
        now = objective.terms(_scored(found, shown, reference)) if objective.linear else terms
        return _floats(now), "; ".join(filter(None, (said, more)))

    return learner.scaled_step(backward, int(1 / max(float(share.abs().max()), 2.0**-60)), rate)


def measured(
    policy: Policy,
    accumulation: Accumulation,
    shown: Rollouts,
    objective: Objective,
    reference: NDArray[np.float64] | None = None,
) -> tuple[int, dict[str, float]]:
    """The objective's metrics of these completions, and how many tokens, or pairs, they are means over; nothing is
    trained."""
    found, _ = scores(policy, accumulation, shown, objective)
    terms = objective.terms(_scored(found, shown, reference))
    return terms.count, {f"{objective.name}/{name}": value for name, value in _floats(terms).items()}


def scores(
    policy: Policy,
    accumulation: Accumulation,
    shown: Rollouts,
    objective: Objective,
    share: Tensor | None = None,
    *,
    standing: int = 0,
) -> tuple[NDArray[np.float64], str]:
    """[P, G]: log-likelihoods in nats, or rewards, as the objective has them, and what is to be said of memory. With
    ``share`` [P, G] the gradient of (share * scores).sum() is added to that of the parameters. Raises NoRoomError."""
    wide = torch.float64 if policy.model.dtype == torch.float64 else torch.float32
    factor = None if share is None else share.to(policy.device, wide)
    score = rewards if objective.of_rewards else log_likelihoods
    found = np.zeros(shown.tokens.shape)  # of each token: a pass may be made twice, where memory was short

    def add(packed: Packed, checkpointing: bool) -> dict[str, float]:
        each = None if factor is None else factor[packed.group, packed.sample]
        where = (index.cpu().numpy() for index in (packed.group, packed.sample, packed.token_index))
        found[tuple(where)] = score(policy, packed, each, checkpointing=checkpointing).cpu().numpy()
        return {}

    _, said = accumulation.add(shown, range(len(shown.prompts)), add, standing)
    return found.sum(-1), said


def log_likelihoods(policy: Policy, packed: Packed, share: Tensor | None, *, checkpointing: bool) -> Tensor:
    """[N] log-probs of the tokens. With ``share`` [N] the gradient of (share * log-probs).sum() is added."""
    loss = None if share is None else lambda logprobs, part: (share[part] * logprobs).sum()
    return token_scores(policy, packed, 1.0, loss, checkpointing=checkpointing)[0]


def rewards(policy: Policy, packed: Packed, share: Tensor | None, *, checkpointing: bool) -> Tensor:
    """[N]: at the last token of each completion its reward, the head's output there; 0 at others. With ``share`` [N]
    the gradient of (share * rewards).sum() is added."""
    last = torch.ones_like(packed.sample, dtype=torch.bool)
    last[:-1] = (packed.sample[1:] != packed.sample[:-1]) | (packed.group[1:] != packed.group[:-1])
    head = policy.model.get_output_embeddings()  # type: ignore[no-untyped-call]
    with in_blocks(policy.model, packed.mask):
        states = predicting_states(
            policy, packed, trained=share is not None, checkpointing=checkpointing, positions=packed.token_positions
        )
        with torch.set_grad_enabled(share is not None):
            wide = torch.promote_types(states.dtype, torch.float32)  # a reward of 8 bits tells no pair from the next
            found = linear(states[last].to(wide), head.weight.to(wide)).squeeze(1)
            if share is not None:
                (share[last] * found).sum().backward()  # type: ignore[no-untyped-call]
    spread = found.new_zeros(len(last))
    spread[last] = found.detach()
    return spread


def _scored(found: NDArray[np.float64], shown: Rollouts, reference: NDArray[np.float64] | None) -> Scored:
    known = np.zeros(found.shape) if reference is None else reference
    return Scored(*(torch.from_numpy(each) for each in (found, shown.trained_lengths.astype(np.float64), known)))


def _floats(terms: Terms) -> dict[str, float]:
    return {name: float(value) for name, value in terms.metrics.items()}
