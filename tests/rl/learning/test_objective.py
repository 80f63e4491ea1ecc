"""Whole updates by every objective, against a loop over unpadded sequences in float64 written from the papers."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.learner import Learner
from rl.learning.logprobs import completion_logprobs
from rl.learning.objective import divergence
from rl.learning.shaping import shaped
from rl.learning.update import adapted, divided
from rl.records import Batch
from tests.rl.updates import (
    MAX_TOKENS,
    PLAIN,
    REINFORCE,
    REWARDS,
    Make,
    compare,
    gradient_of,
    identical,
    normalised,
    off_policy,
    weights,
)

Drawn = Callable[..., Batch]


@pytest.mark.parametrize("name", ["dapo", "dr_grpo", "cispo", "sapo", "gspo", "rloo", "maxrl", "m2po"])
def test_the_gradient_is_that_of_the_paper(name: str, sequences: Callable[..., Any]) -> None:
    policy, batch, model, pi, mu = sequences(spread=0.3 if name != "gspo" else 0.002)
    tokens = sum(len(one) for one in pi.values())
    # M2PO: the largest square that is kept, of tokens that move further away
    gaps = torch.cat([(gap := pi[at].detach() - mu[at])[gap * normalised(REWARDS[at[0]])[at[1]] > 0] for at in pi])
    order = gaps.square().sort().values
    means = order.cumsum(0) / torch.arange(1, len(order) + 1)
    edge = float(order[means <= 0.04][-1])
    total = torch.zeros((), dtype=torch.float64)
    for (p, g), of in pi.items():
        mean = sum(REWARDS[p]) / 4
        a = normalised(REWARDS[p])[g]
        ratio = (of - mu[p, g]).exp()
        match name:
            case "dapo":
                total = total - torch.minimum(ratio * a, ratio.clamp(0.8, 1.28) * a).sum() / tokens
            case "dr_grpo":
                a = REWARDS[p][g] - mean
                bound = torch.minimum(ratio * a, ratio.clamp(0.8, 1.2) * a).clamp(min=3 * a if a < 0 else -math.inf)
                total = total - bound.sum() / (len(pi) * MAX_TOKENS)
            case "cispo":
                total = total - (ratio.detach().clamp(max=5.0) * a * of).sum() / tokens
            case "sapo":
                tau = 1.0 if a > 0 else 1.05
                total = total - (a * torch.sigmoid(tau * (ratio - 1)) * 4 / tau).mean() / len(pi)
            case "gspo":
                s = (of - mu[p, g]).mean().exp()
                total = total - torch.minimum(s * a, s.clamp(1 - 3e-4, 1 + 4e-4) * a) / len(pi)
            case "m2po":
                gap = of.detach() - mu[p, g]
                kept = (gap * a <= 0) | (gap.square() <= edge + 1e-9)
                total = total - (ratio * a * kept).sum() / tokens
            case _:
                a = (REWARDS[p][g] - mean) * 4 / 3 if name == "rloo" else (REWARDS[p][g] - mean) / mean
                total = total - (ratio.detach().clamp(max=2.0) * a * of).sum() / tokens
    config = AlgorithmSpec(name=name, overlong=0)
    compare(gradient_of(Learner(policy, PLAIN), batch, config), model, total)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_the_divergence_from_the_reference_is_added_to_the_loss(estimator: str, sequences: Callable[..., Any]) -> None:
    policy, batch, model, pi, mu = sequences()
    reference = np.random.default_rng(1).normal(-2, 0.5, batch.rollouts.tokens.shape).astype(np.float32)
    batch = replace(batch, reference_logprobs=reference)
    tokens = sum(len(one) for one in pi.values())
    total, apart = torch.zeros((), dtype=torch.float64), 0.0
    for (p, g), of in pi.items():
        gap = of - torch.from_numpy(reference[p, g, : len(of)]).double()
        kl = gap.square() / 2 if estimator == "k2" else (-gap).exp() - 1 + gap
        a = REWARDS[p][g] - sum(REWARDS[p]) / 4
        total = total - (a * (of - mu[p, g]).exp().detach().clamp(max=2.0) * of - 0.1 * kl).sum() / tokens
        apart += float(kl.detach().sum()) / tokens
    learner = Learner(policy, PLAIN)
    config = AlgorithmSpec(kl={"coefficient": 0.1, "estimator": estimator})
    compare(gradient_of(learner, batch, config), model, total)
    assert learner.learned is not None
    assert learner.learned.metrics["loss/kl_reference"] == pytest.approx(apart, rel=1e-4)


def test_the_divergence_is_taken_off_the_reward(sequences: Callable[..., Any]) -> None:
    policy, batch, model, pi, mu = sequences()
    reference = (batch.rollouts.logprobs - np.float32(0.5)) * batch.rollouts.inside
    tokens = sum(len(one) for one in pi.values())
    total = torch.zeros((), dtype=torch.float64)
    for (p, g), of in pi.items():
        group = [REWARDS[p][at] - 0.1 * 0.5 * int(batch.rollouts.lengths[p, at]) for at in range(4)]  # k1 = 0.5 a token
        ratio = (of - mu[p, g]).exp().detach().clamp(max=2.0)
        total = total - ((group[g] - sum(group) / 4) * ratio * of).sum() / tokens
    config = AlgorithmSpec(kl={"coefficient": 0.1, "estimator": "k1", "in_reward": True})
    found = gradient_of(Learner(policy, PLAIN), replace(batch, reference_logprobs=reference), config)
    compare(found, model, total)


@pytest.mark.parametrize("estimator", ["k1", "k2", "k3"])
def test_estimators_of_the_divergence_have_its_mean(estimator: str) -> None:
    torch.manual_seed(0)
    pi, reference = (torch.randn(5, dtype=torch.float64).log_softmax(-1) for _ in range(2))
    reference = pi + 0.05 * (reference - pi)  # k2 is biased by the third moment
    reference = reference.log_softmax(-1)
    exact = float((pi.exp() * (pi - reference)).sum())
    found = float((pi.exp() * divergence(pi, reference, estimator)).sum())
    assert found == pytest.approx(exact, rel=0.1 if estimator == "k2" else 1e-9)


def test_the_entropy_bonus_is_that_of_the_whole_distribution(sequences: Callable[..., Any]) -> None:
    policy, batch, model, pi, mu = sequences("gpt2")
    rollouts, tokens = batch.rollouts, sum(len(one) for one in pi.values())
    total = torch.zeros((), dtype=torch.float64)
    for (p, g), of in pi.items():
        prompt, length = rollouts.prompts[p], len(of)
        ids = torch.tensor([[*prompt.tolist(), *rollouts.tokens[p, g, :length].tolist()]])
        scores = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        entropy = -(scores.exp() * scores).sum(-1)
        a = REWARDS[p][g] - sum(REWARDS[p]) / 4
        total = total - (a * (of - mu[p, g]).exp().detach().clamp(max=2.0) * of + 0.05 * entropy).sum() / tokens
    compare(gradient_of(Learner(policy, PLAIN), batch, AlgorithmSpec(entropy=0.05)), model, total)


# -- several optimizer steps, and the policy that they began with


@pytest.mark.parametrize("proximal", ["recomputed", "interpolated"])
def test_at_one_step_a_batch_decoupled_ppo_is_truncated_reinforce(
    proximal: str, make_policy: Make, drawn: Drawn
) -> None:
    batch = off_policy(drawn(make_policy(eager=4.0)), 0.5)
    versions = batch.rollouts.versions - 1  # of the version before
    batch = replace(batch, rollouts=replace(batch.rollouts, versions=versions))
    decoupled = AlgorithmSpec(name="dapo", overlong=0, proximal=proximal, importance_cap=2.0)
    truncated = AlgorithmSpec(name="cispo", weight_cap=2.0)  # REINFORCE with the same advantages and weights
    found = [gradient_of(Learner(make_policy(eager=4.0), PLAIN), batch, config) for config in (decoupled, truncated)]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_the_proximal_policy_is_the_one_that_the_batch_began_with(make_policy: Make, drawn: Drawn) -> None:
    """Two steps on the same groups: the second's ratio is to the policy before the first."""
    policy = make_policy(eager=4.0)
    batch = off_policy(drawn(policy), 0.3).select([0, 2])
    before = completion_logprobs(policy, batch.rollouts, 1.0, Learner(policy, PLAIN).accumulation, [0, 1])
    learner = Learner(policy, PLAIN)
    learner.update(batch, AlgorithmSpec(name="dapo", overlong=0, proximal="recomputed", epochs=2), 1.0, MAX_TOKENS)

    again = Learner(make_policy(eager=4.0), PLAIN)
    importance = np.minimum(np.exp(before - batch.rollouts.logprobs), 5.0)
    first = replace(batch, rollouts=replace(batch.rollouts, logprobs=before))
    import rl.learning.update as update_module

    objective = update_module.Update.objective

    def weighted(self: Any, *given: Any) -> Any:
        made = objective(self, *given)
        return replace(made, weight=made.weight * torch.from_numpy(importance))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(update_module.Update, "objective", weighted)
        again.update(first, AlgorithmSpec(name="dapo", overlong=0, epochs=2), 1.0, MAX_TOKENS)
    for name, value in weights(learner).items():
        torch.testing.assert_close(value, weights(again)[name], atol=1e-6, rtol=1e-5)


def test_minibatches_and_epochs_are_optimizer_steps_on_parts_that_cover_the_batch(
    make_policy: Make, drawn: Drawn
) -> None:
    batch = drawn(make_policy(eager=4.0))
    learner = Learner(make_policy(eager=4.0), PLAIN)
    learned = learner.update(batch, AlgorithmSpec(name="grpo", minibatches=2, epochs=3), 1.0)
    assert (learner.optimizer_steps, learned.step, learned.groups) == (6, 1, 2)
    by_hand = Learner(make_policy(eager=4.0), PLAIN)
    for epoch in range(3):
        parts = list(divided([0, 2], 2, 0, epoch))
        assert sorted(group for part in parts for group in part) == [0, 2]
        for part in parts:
            by_hand.update(batch.select(part), AlgorithmSpec(name="grpo"), 1.0)
    assert identical(weights(learner), weights(by_hand))


def test_a_refused_step_ends_the_batch_and_leaves_the_steps_before_it(make_policy: Make, drawn: Drawn) -> None:
    batch = drawn(make_policy(eager=4.0))
    order = list(divided([0, 2], 2, 0, 0))
    batch.rollouts.logprobs[order[1][0]] = np.nan
    learner, alone = Learner(make_policy(eager=4.0), PLAIN), Learner(make_policy(eager=4.0), PLAIN)
    learned = learner.update(batch, AlgorithmSpec(name="grpo", minibatches=2, epochs=2), 1.0)
    assert (learned.applied, learned.refused) == (True, "the loss of update 1 is not finite")
    assert learner.optimizer_steps == 1
    alone.update(batch.select(order[0]), AlgorithmSpec(name="grpo"), 1.0)
    assert identical(weights(learner), weights(alone))


def test_m2po_looks_anew_before_every_optimizer_step(make_policy: Make, drawn: Drawn) -> None:
    """On-policy nothing is left out of the first step; what moved too far since is left out of later ones."""
    policy = make_policy(eager=4.0)
    fast = PLAIN.model_copy(update={"lr": 0.05, "clip_norm": 1e9})
    learned = Learner(policy, fast).update(drawn(policy), AlgorithmSpec(name="m2po", epochs=4), 1.0)
    assert learned.metrics["policy/masked_fraction"] > 0
    once = Learner(make_policy(eager=4.0), fast).update(drawn(make_policy(eager=4.0)), AlgorithmSpec(name="m2po"), 1.0)
    assert once.metrics["policy/masked_fraction"] == 0


def test_a_masked_completion_has_its_divergence_in_the_mean_of_its_group(make_policy: Make, drawn: Drawn) -> None:
    batch = drawn(make_policy(eager=4.0)).select([0])
    ended = np.array([[True, False, True, True]])
    batch = replace(batch, rollouts=replace(batch.rollouts, ended=ended))
    reference = (batch.rollouts.logprobs - 1) * batch.rollouts.inside  # a divergence of 1 a token
    config = AlgorithmSpec(mask_truncated=True, kl={"coefficient": 0.5, "in_reward": True})
    made = shaped(replace(batch, reference_logprobs=reference), config, MAX_TOKENS, 0.5)
    assert made.rollouts.lengths[0, 1] == 0
    np.testing.assert_allclose(made.returns, batch.rewards - 0.5 * batch.rollouts.lengths, rtol=1e-6)


@pytest.mark.parametrize("estimator", ["k2", "k3"])
def test_only_the_estimator_that_pulls_back_may_be_in_the_reward(estimator: str) -> None:
    with pytest.raises(ValueError, match=f"estimator: {estimator} in the reward .* leads away from the reference"):
        AlgorithmSpec(kl={"coefficient": 0.1, "estimator": estimator, "in_reward": True})
    assert AlgorithmSpec(kl={"coefficient": 0.1, "in_reward": True}).kl.chosen == "k1"
    assert AlgorithmSpec(kl={"coefficient": 0.1}).kl.chosen == "k3"


def test_groups_without_variance_teach_where_the_baseline_is_no_groups(make_policy: Make, drawn: Drawn) -> None:
    batch = drawn(make_policy(eager=4.0))
    assert list(batch.with_signal) == [True, False, True]
    learned = Learner(make_policy(eager=4.0), PLAIN).update(batch, AlgorithmSpec(name="reinforce_pp"), 1.0)
    assert learned.groups == 3


def test_the_coefficient_of_the_divergence_is_adapted_and_survives(
    make_policy: Make, drawn: Drawn, tmp_path: Any
) -> None:
    config = AlgorithmSpec(kl={"coefficient": 0.1, "target": 1e-6})
    assert adapted(0.1, config.kl, 5.0) == pytest.approx(0.102)
    assert adapted(0.1, config.kl, 0.0) == pytest.approx(0.098)
    assert adapted(0.1, config.kl, 1.1e-6) == pytest.approx(0.101)
    assert adapted(0.1, REINFORCE.kl, 5.0) == 0.1
    learner = Learner(make_policy(eager=4.0), PLAIN)
    batch = drawn(learner.policy)
    batch = replace(batch, reference_logprobs=batch.rollouts.logprobs - 1)
    used = [learner.update(batch, config, 1.0).metrics["loss/kl_coefficient"] for _ in range(2)]
    assert used == pytest.approx([0.1, 0.102])
    tmp_path.mkdir(exist_ok=True)
    learner.save(tmp_path)
    again = Learner(make_policy(eager=4.0), PLAIN)
    again.restore(tmp_path)
    assert again.update(batch, config, 1.0).metrics["loss/kl_coefficient"] == pytest.approx(0.1 * 1.02**2)
