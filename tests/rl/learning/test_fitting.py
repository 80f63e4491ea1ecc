"""The gradients of losses of given completions, beside the papers' losses by autograd, one sequence at a time."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import logsigmoid
from transformers import PreTrainedModel

from rl.config import PolicyConfig
from rl.learning.fitting import fit, measured, optimize, scores
from rl.learning.learner import Learner
from rl.learning.objectives import BradleyTerry, DirectPreference, Imitation, Objective
from rl.learning.optimizer_config import OptimizerConfig
from rl.learning.passes import Accumulation
from rl.loading.reward_model import load_reward_model
from rl.model.policy import Policy, save_policy
from rl.records import Rollouts

Make = Callable[..., Policy]
Gradient = dict[str, Tensor]
PROMPTS = [[5, 9, 12], [7, 30, 31, 8, 4], [11]]
SHOWN = [[[20, 21, 22, 2]], [[33, 2]], [[14]]]  # the last is one token long
PAIRS = [[[20, 21, 22, 2], [23, 2]], [[33, 2], [34, 35, 36, 37, 2]], [[14], [2]]]
# of gradients, by architecture: transformers' RMSNorm computes in float32, whatever the model is in
TOLERANCES = {"qwen3": 3e-6, "llama": 3e-6, "gemma2": 3e-6, "gpt2": 1e-10}
BETA = 0.3


class Watched(Learner):
    """A learner that keeps the gradient of its last step, as it is before it is clipped."""

    gradient: Gradient

    def optimizer_step(self, scale: float = 1.0, *, loss_scale: float = 1.0) -> float:
        named = self.policy.model.named_parameters()
        self.gradient = {name: one.grad.double() / loss_scale for name, one in named if one.grad is not None}
        return super().optimizer_step(scale, loss_scale=loss_scale)


def learner_of(policy: Policy, **options: int) -> Watched:
    return Watched(policy, OptimizerConfig(lr=1e-3, **options))


@pytest.fixture
def rewarding(make_policy: Make, tmp_path: Path) -> Make:
    """A reward model of a small architecture, whose head is not zero."""

    def make(name: str = "qwen3") -> Policy:
        save_policy(make_policy(name), tmp_path / name)
        policy = load_reward_model(
            str(tmp_path / name), PolicyConfig(device="cpu", dtype="float32"), master=True, fresh=True
        )
        torch.manual_seed(3)
        with torch.no_grad():
            policy.model.get_output_embeddings().weight.normal_()
        return policy

    return make


def likelihood(model: PreTrainedModel, prompt: list[int], completion: list[int]) -> Tensor:
    ids = torch.tensor([prompt + completion])
    logprobs = model(input_ids=ids, use_cache=False).logits[0].log_softmax(-1)
    return sum(
        (logprobs[len(prompt) - 1 + t, token] for t, token in enumerate(completion)),
        torch.zeros((), dtype=logprobs.dtype),
    )


def reward(model: PreTrainedModel, prompt: list[int], completion: list[int]) -> Tensor:
    """By transformers' own classification, which takes the last token that is no padding."""
    ids = torch.tensor([prompt + completion])
    return model(input_ids=ids, attention_mask=torch.ones_like(ids), use_cache=False).logits[0, 0]


def pairs_of(score: Callable[..., Tensor], model: PreTrainedModel) -> list[list[Tensor]]:
    return [[score(model, prompt, one) for one in pair] for prompt, pair in zip(PROMPTS, PAIRS, strict=True)]


def gradient_of(model: PreTrainedModel, loss: Tensor) -> Gradient:
    model.zero_grad()
    loss.backward()
    return {name: one.grad for name, one in model.named_parameters() if one.grad is not None}


def assert_close(ours: Gradient, theirs: Gradient, tolerance: float) -> None:
    largest = max(float(of.abs().max()) for of in theirs.values())
    assert largest > 0
    for name, of in theirs.items():
        mine = ours.get(name, torch.zeros_like(of))
        assert float((mine - of).abs().max()) < tolerance * largest, name


def in_float64(policy: Policy) -> Policy:
    policy.model.double()
    return policy


@pytest.mark.parametrize("microbatch", [1, 1000])
@pytest.mark.parametrize("name", TOLERANCES)
def test_imitation_is_the_mean_log_likelihood_of_tokens(
    name: str, microbatch: int, make_policy: Make, make_rollouts: Callable[..., Rollouts]
) -> None:
    policy = in_float64(make_policy(name))
    model = deepcopy(policy.model)
    count = sum(len(ids) for group in SHOWN for ids in group)
    loss = -sum(likelihood(model, prompt, ids) for prompt, [ids] in zip(PROMPTS, SHOWN, strict=True)) / count
    learner = learner_of(policy, microbatch_tokens=microbatch)
    learned = fit(learner, make_rollouts(PROMPTS, SHOWN), Imitation(), None)
    assert_close(learner.gradient, gradient_of(model, loss), TOLERANCES[name])
    assert learned.metrics["sft/loss"] == pytest.approx(loss.item(), rel=10 * TOLERANCES[name])
    assert learned.applied
    assert learned.step == learner.step == 1


@pytest.mark.parametrize("microbatch", [1, 1000])
@pytest.mark.parametrize("name", TOLERANCES)
def test_direct_preference_is_equation_7(
    name: str, microbatch: int, make_policy: Make, make_rollouts: Callable[..., Rollouts]
) -> None:
    policy, start = in_float64(make_policy(name)), in_float64(make_policy(name, seed=1))
    model, shown = deepcopy(policy.model), make_rollouts(PROMPTS, PAIRS)
    with torch.no_grad():
        before = pairs_of(likelihood, start.model)
    margins = [
        BETA * ((chosen - chosen_before) - (rejected - rejected_before))
        for (chosen, rejected), (chosen_before, rejected_before) in zip(
            pairs_of(likelihood, model), before, strict=True
        )
    ]
    loss = -torch.stack([logsigmoid(margin) for margin in margins]).mean()
    objective = DirectPreference(BETA)
    reference, _ = scores(start, Accumulation(start, OptimizerConfig()), shown, objective)
    assert reference == pytest.approx(
        np.array([[float(one) for one in pair] for pair in before]), rel=10 * TOLERANCES[name]
    )
    learner = learner_of(policy, microbatch_tokens=microbatch)
    learned = fit(learner, shown, objective, reference)
    assert_close(learner.gradient, gradient_of(model, loss), TOLERANCES[name])
    assert learned.metrics["dpo/loss"] == pytest.approx(loss.item(), rel=10 * TOLERANCES[name])
    assert learned.metrics["dpo/margin"] == pytest.approx(sum(margins).item() / 3, rel=10 * TOLERANCES[name])
    assert learned.metrics["dpo/accuracy"] == pytest.approx(sum(float(m) > 0 for m in margins) / 3)


@pytest.mark.parametrize("microbatch", [1, 1000])
@pytest.mark.parametrize("name", TOLERANCES)
def test_a_reward_model_is_trained_by_the_log_odds_of_pairs(
    name: str, microbatch: int, rewarding: Make, make_rollouts: Callable[..., Rollouts]
) -> None:
    policy = in_float64(rewarding(name))
    model = deepcopy(policy.model)
    model.get_output_embeddings = lambda: None
    found = pairs_of(reward, model)
    loss = -torch.stack([logsigmoid(chosen - rejected) for chosen, rejected in found]).mean()
    learner, shown = learner_of(policy, microbatch_tokens=microbatch), make_rollouts(PROMPTS, PAIRS)
    mine, _ = scores(policy, learner.accumulation, shown, BradleyTerry())
    assert mine == pytest.approx(np.array([[float(one) for one in pair] for pair in found]), rel=10 * TOLERANCES[name])
    learned = fit(learner, shown, BradleyTerry(), None)
    assert_close(learner.gradient, gradient_of(model, loss), TOLERANCES[name])
    assert learned.metrics["reward_model/loss"] == pytest.approx(loss.item(), rel=10 * TOLERANCES[name])
    assert learned.metrics["reward_model/accuracy"] == pytest.approx(sum(float(c) > float(r) for c, r in found) / 3)


@pytest.mark.parametrize("objective", [Imitation(), DirectPreference(BETA), BradleyTerry()], ids=lambda of: of.name)
def test_neither_the_order_nor_the_packing_nor_checkpointing_changes_a_gradient(
    objective: Objective, rewarding: Make, make_policy: Make, make_rollouts: Callable[..., Rollouts]
) -> None:
    given = SHOWN if objective.linear else PAIRS
    reference = np.linspace(-9, -5, 3 * len(given[0])).reshape(3, -1)
    gradients = []
    for order, positions, checkpointing in (([0, 1, 2], 1, "off"), ([2, 0, 1], 1000, "off"), ([1, 2, 0], 12, "on")):
        policy = in_float64(rewarding("gpt2") if objective.of_rewards else make_policy("gpt2"))
        learner = Watched(policy, OptimizerConfig(lr=1e-3, microbatch_tokens=positions, checkpointing=checkpointing))
        shown = make_rollouts([PROMPTS[row] for row in order], [given[row] for row in order])
        fit(learner, shown, objective, reference[order])
        gradients.append(learner.gradient)
    for other in gradients[1:]:
        assert_close(other, gradients[0], 1e-10)


@pytest.mark.parametrize("objective", [Imitation(), DirectPreference(BETA)], ids=lambda of: of.name)
def test_float16_keeps_what_is_small(
    objective: Objective, make_policy: Make, make_rollouts: Callable[..., Rollouts]
) -> None:
    """Of 64 copies each token has a 64th of the gradient, and the sum is that of one."""
    given = SHOWN if objective.linear else PAIRS
    wide, narrow = make_policy(), make_policy()
    narrow = Policy(narrow.model, narrow.tokenizer, narrow.device, torch.float16)
    kept, half = (learner_of(policy) for policy in (wide, narrow))
    many = make_rollouts(PROMPTS * 64, given * 64)
    fit(kept, many, objective, None)
    assert fit(half, many, objective, None).applied
    assert_close(half.gradient, kept.gradient, 0.02)


def test_what_overflows_in_float16_is_scaled_less(
    make_policy: Make, make_rollouts: Callable[..., Rollouts], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_policy()
    learner = learner_of(Policy(policy.model, policy.tokenizer, policy.device, torch.float16))
    tried: list[float] = []

    def overflowing(_: float, *, loss_scale: float) -> float:
        tried.append(loss_scale)
        return 1.0 if loss_scale < 1e3 else np.inf

    monkeypatch.setattr("rl.learning.optimized.loss_scale", lambda *_: 2.0**18)
    monkeypatch.setattr(learner, "optimizer_step", overflowing)
    assert optimize(learner, make_rollouts(PROMPTS, SHOWN), Imitation()).norm == 1.0
    assert tried == [2.0**18, 2.0**14, 2.0**10, 2.0**6]


@pytest.mark.parametrize("objective", [Imitation(), DirectPreference(BETA), BradleyTerry()], ids=lambda of: of.name)
def test_a_loss_that_is_not_finite_changes_no_weight(
    objective: Objective, rewarding: Make, make_policy: Make, make_rollouts: Callable[..., Rollouts]
) -> None:
    policy = rewarding() if objective.of_rewards else make_policy()
    with torch.no_grad():
        policy.model.get_decoder().norm.weight[0] = np.nan
    learner = learner_of(policy)
    before = {name: one.clone() for name, one in policy.model.named_parameters()}
    shown = make_rollouts(PROMPTS, SHOWN if objective.linear else PAIRS)
    for refusals in (1, 2):
        learned = fit(learner, shown, objective, None)
        assert not learned.applied
        assert learned.refusals == refusals
        assert learned.refused == f"the loss of update {refusals} is not finite"
    assert learner.step == 2
    assert all(
        torch.equal(one.nan_to_num(), before[name].nan_to_num()) for name, one in policy.model.named_parameters()
    )


@pytest.mark.parametrize("objective", [Imitation(), DirectPreference(BETA), BradleyTerry()], ids=lambda of: of.name)
def test_steps_learn_what_is_shown(
    objective: Objective, rewarding: Make, make_policy: Make, make_rollouts: Callable[..., Rollouts]
) -> None:
    policy = rewarding() if objective.of_rewards else make_policy()
    shown = make_rollouts(PROMPTS, SHOWN if objective.linear else PAIRS)
    learner = Learner(policy, OptimizerConfig(lr=5e-3, warmup_steps=0))
    reference = None
    if objective.with_reference:
        reference, _ = scores(policy, learner.accumulation, shown, objective)
        _, at_first = measured(policy, learner.accumulation, shown, objective, reference)
        assert at_first["dpo/loss"] == pytest.approx(np.log(2), abs=1e-6)
    losses = [fit(learner, shown, objective, reference).metrics[f"{objective.name}/loss"] for _ in range(30)]
    assert losses[-1] < 0.3 * losses[0]
    count, after = measured(policy, learner.accumulation, shown, objective, reference)
    assert count == (shown.lengths.sum() if objective.linear else len(shown.lengths))
    assert after[f"{objective.name}/loss"] < 0.3 * losses[0]
    assert after.get(f"{objective.name}/accuracy", 1.0) == 1.0
