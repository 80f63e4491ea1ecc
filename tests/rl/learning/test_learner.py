import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from rl.config import SamplingConfig
from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.learner import Learner
from rl.learning.optimizer_config import OptimizerConfig
from rl.records import Batch, Problem
from rl.sampling.sampler import sample
from tests.rl.updates import GRPO, PLAIN, REINFORCE, Judged, Make, identical, moments, off_policy, weights

OWN = "import numpy as np\nfrom rl.algorithms.reinforce import Reinforce\nclass Own(Reinforce):\n"

# -- which parameters


def test_muon_trains_no_table_of_embeddings_and_no_head(make_policy: Make) -> None:
    for name in ("gpt2", "llama"):
        learner = Learner(make_policy(name), OptimizerConfig(name="muon", lr=3e-4))
        names = {id(parameter): name for name, parameter in learner.policy.model.named_parameters()}
        _, muon = learner.optimizers
        trained = {names[id(parameter)] for group in muon.param_groups for parameter in group["params"]}
        assert trained
        assert not [name for name in trained if any(part in name for part in ("wte", "wpe", "embed", "lm_head"))]


# -- what an update says


@pytest.mark.parametrize("how", [".astype(np.float64)", "[::-1].copy()[::-1]", ".T.copy().T"])
def test_what_a_formula_gives_may_be_any_numbers_and_lie_anyhow(
    how: str, make_policy: Make, drawn: Callable[..., Batch]
) -> None:
    given = f"{OWN}    def advantages(self, batch):\n        return super().advantages(batch){how}\n"
    given += (
        "    def token_weights(self, *of):\n        return super().token_weights(*of)[::-1].astype(np.float64)[::-1]\n"
    )
    found = []
    for spec in (REINFORCE, AlgorithmSpec(name="own.py:Own", text=given)):
        learner = Learner(make_policy(eager=4.0), PLAIN)
        learned = learner.update(drawn(learner.policy), spec, 1.0)
        found.append((learned.metrics, weights(learner)))
    assert found[0][0] == found[1][0]
    assert identical(found[0][1], found[1][1])


def test_a_group_whose_greedy_completion_was_not_judged_takes_no_part(
    make_policy: Make, drawn: Callable[..., Batch]
) -> None:
    remax, found = AlgorithmSpec(name="remax"), []
    for unknown in (0.5, math.nan):
        learner = Learner(make_policy(eager=4.0), PLAIN)
        batch = drawn(learner.policy)
        baseline = np.full(len(batch), 0.5, np.float32)
        baseline[0] = unknown
        whole = replace(batch, baseline=baseline)
        given = whole if math.isnan(unknown) else whole.select(range(1, len(batch)))
        learned = learner.update(given, remax, 1.0)
        assert learned.metrics["groups/used"] == len(batch) - 1
        found.append((learned.metrics, weights(learner)))
    assert found[0][0] == pytest.approx(found[1][0])
    assert all(torch.allclose(one, found[1][1][name], atol=1e-7) for name, one in found[0][1].items())
    policy = make_policy()
    batch = drawn(policy)
    nothing = replace(batch, baseline=np.full(len(batch), np.nan, np.float32))
    assert not Learner(policy, PLAIN).update(nothing, remax, 1.0).applied


def test_an_update_on_its_own_samples_is_on_policy(make_policy: Make, drawn: Callable[..., Batch]) -> None:
    policy = make_policy(eager=4.0)
    batch = drawn(policy)
    learned = Learner(policy, PLAIN).update(batch, GRPO, 1.0)
    assert learned.applied
    assert (learned.step, learned.refused, learned.refusals) == (1, "", 0)
    assert learned.metrics["policy/mismatch_kl"] == pytest.approx(0, abs=1e-6)
    assert learned.metrics["policy/clip_fraction"] == 0
    assert (learned.metrics["staleness/mean"], learned.metrics["staleness/max"]) == (0, 0)


def test_figures_of_a_stale_batch(
    make_policy: Make, drawn: Callable[..., Batch], exactly: Callable[[PreTrainedModel], PreTrainedModel]
) -> None:
    policy = make_policy(eager=4.0)
    batch = off_policy(drawn(policy), 0.5).select([0])
    rollouts = batch.rollouts
    lengths = rollouts.lengths[0].tolist()
    entropy = kl = capped = 0.0
    reference = exactly(policy.model)
    for g, length in enumerate(lengths):
        ids = torch.tensor([[*rollouts.prompts[0], *rollouts.tokens[0, g, :length]]], dtype=torch.int64)
        with torch.no_grad():
            logits = reference(ids, use_cache=False).logits[0, len(rollouts.prompts[0]) - 1 : -1]
        entropy += float(torch.distributions.Categorical(logits=logits).entropy().sum())
        for t in range(length):
            gap = float(logits[t].log_softmax(-1)[rollouts.tokens[0, g, t]]) - float(rollouts.logprobs[0, g, t])
            kl += math.exp(gap) - 1 - gap
            capped += gap > math.log(2)
    versions = rollouts.versions.copy()
    versions[0, 0, : lengths[0]] = 1  # one completion of version 1, the others of version 3
    versions[0, 1:] = 3
    stale = replace(batch, rollouts=replace(rollouts, versions=versions))
    learned = Learner(policy, PLAIN, step=3).update(stale, REINFORCE, 1.0)
    assert learned.step == 4
    assert learned.metrics["policy/entropy"] == pytest.approx(entropy / sum(lengths), rel=1e-4)
    assert learned.metrics["policy/mismatch_kl"] == pytest.approx(kl / sum(lengths), rel=1e-3)
    assert learned.metrics["policy/clip_fraction"] == pytest.approx(capped / sum(lengths))
    assert learned.metrics["staleness/max"] == 2
    assert learned.metrics["staleness/mean"] == pytest.approx(2 * lengths[0] / sum(lengths))


@pytest.mark.parametrize("rewards", [[[1] * 4] * 3, [[0] * 4] * 3])
def test_nothing_to_learn_from_advances_the_step_and_leaves_everything(
    rewards: list[list[float]], make_policy: Make, drawn: Callable[..., Batch], judged: Judged
) -> None:
    policy = make_policy(eager=4.0)
    learner, batch = Learner(policy, PLAIN), drawn(policy)
    learner.update(batch, REINFORCE, 1.0)
    before, inside = weights(learner), moments(learner)
    learned = learner.update(judged(batch.rollouts, rewards), REINFORCE, 1.0)
    assert (learned.step, learned.applied, learned.refused, learned.groups) == (2, False, "", 0)
    assert learner.step == 2
    assert learner.optimizer_steps == 1
    assert identical(weights(learner), before)
    assert identical(moments(learner), inside)


# -- refusals


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("fault", ["loss", "gradient", "logprob"])
def test_a_non_finite_update_is_refused_and_leaves_everything_and_refusals_in_a_row_are_counted(
    fault: str, optimizer: str, make_policy: Make, drawn: Callable[..., Batch]
) -> None:
    policy = make_policy(eager=4.0)
    learner, batch = Learner(policy, OptimizerConfig(name=optimizer, lr=1e-3, warmup_steps=0)), drawn(policy)
    learner.update(batch, REINFORCE, 1.0)
    given = batch
    parameter = learner.parameters[1]
    whole = parameter.detach().clone()
    hook = None
    match fault:
        case "loss":
            with torch.no_grad():
                parameter[0, 0] = math.inf
        case "gradient":  # overflows on its way back
            hook = parameter.register_hook(lambda gradient: gradient * math.inf)
        case _:
            logprobs = batch.rollouts.logprobs.copy()
            logprobs[2, 1, 0] = math.nan
            given = replace(batch, rollouts=replace(batch.rollouts, logprobs=logprobs))
    before, inside = weights(learner), moments(learner)
    for row in (1, 2, 3):
        learned = learner.update(given, REINFORCE, 1.0)
        assert not learned.applied
        what = "gradient" if fault == "gradient" else "loss"
        assert learned.refused == f"the {what} of update {row + 1} is not finite"
        assert (learned.refusals, learned.step, learner.step, learner.optimizer_steps) == (row, row + 1, row + 1, 1)
        assert identical(moments(learner), inside)
        assert identical(weights(learner), before)
    if hook:
        hook.remove()
    with torch.no_grad():
        parameter.copy_(whole)
    learned = learner.update(batch, REINFORCE, 1.0)
    assert learned.applied
    assert (learned.refused, learned.refusals) == ("", 0)
    assert not identical(weights(learner), before)
    assert all(value.isfinite().all() for value in weights(learner).values())


# -- the step


def test_two_steps_of_adamw_with_warm_up_clipping_and_decay_are_those_of_the_formula(make_policy: Make) -> None:
    config = OptimizerConfig(lr=1e-2, warmup_steps=4, clip_norm=0.5, weight_decay=0.1, betas=(0.8, 0.9))
    learner = Learner(make_policy(), config)
    expected = [p.detach().double() for p in learner.parameters]
    first = [torch.zeros_like(p) for p in expected]
    second = [torch.zeros_like(p) for p in expected]
    for t, size in ((1, 0.1), (2, 0.0001)):  # far above the clip, and below it
        torch.manual_seed(t)
        gradients = [size * torch.randn_like(p) for p in learner.parameters]
        norm = math.sqrt(sum(float(g.double().pow(2).sum()) for g in gradients))
        assert (norm > 0.5) == (t == 1)
        cut = min(1.0, 0.5 / norm)
        lr = 1e-2 * t / 4 * 0.5  # half, by the scale
        for index, gradient in enumerate(gradients):
            g = gradient.double() * cut
            first[index] = 0.8 * first[index] + 0.2 * g
            second[index] = 0.9 * second[index] + 0.1 * g**2
            rise = (first[index] / (1 - 0.8**t)) / ((second[index] / (1 - 0.9**t)).sqrt() + 1e-8)
            expected[index] = expected[index] * (1 - lr * 0.1) - lr * rise
            learner.parameters[index].grad = gradient
        assert learner.optimizer_step(scale=0.5) == pytest.approx(norm, rel=1e-5)
        assert all(parameter.grad is None for parameter in learner.parameters)
    for parameter, value in zip(learner.parameters, expected, strict=True):
        torch.testing.assert_close(parameter.detach().double(), value, atol=2e-6, rtol=1e-4)


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_the_learning_rate_rises_with_applied_updates_only(
    optimizer: str, make_policy: Make, drawn: Callable[..., Batch], judged: Judged
) -> None:
    policy = make_policy(eager=4.0)
    learner, batch = Learner(policy, OptimizerConfig(name=optimizer, lr=4e-4, warmup_steps=4)), drawn(policy)
    rates = []
    for _ in range(6):
        learner.update(batch, REINFORCE, 1.0)
        (rate,) = {group["lr"] for optimizer in learner.optimizers for group in optimizer.param_groups}
        rates.append(rate)
        learner.update(judged(batch.rollouts, [[0] * 4] * 3), REINFORCE, 1.0)
    assert rates == pytest.approx([1e-4, 2e-4, 3e-4, 4e-4, 4e-4, 4e-4])


def test_muon_orthogonalises_hidden_matrices_only(make_policy: Make, drawn: Callable[..., Batch]) -> None:
    learners = [
        Learner(make_policy(eager=4.0), OptimizerConfig(name=name, lr=3e-4, warmup_steps=0))
        for name in ("adamw", "muon")
    ]
    batch = drawn(make_policy(eager=4.0))
    for learner in learners:
        learner.update(batch, REINFORCE, 1.0)
    adamw, muon = (weights(learner) for learner in learners)
    differ = {name for name in adamw if not torch.equal(adamw[name], muon[name])}
    assert differ == {name for name in adamw if "proj" in name}


# -- learning


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("loss", [REINFORCE, GRPO], ids=["reinforce", "grpo"])
def test_training_on_a_trivial_problem_raises_the_reward(
    loss: AlgorithmSpec, optimizer: str, make_policy: Make, problems: list[Problem]
) -> None:
    """Reward 1 for a completion that ends within four tokens."""
    policy = make_policy(eager=5.0)
    learner = Learner(policy, OptimizerConfig(name=optimizer, lr=1e-2, warmup_steps=2))
    means = []
    for step in range(16):
        config = SamplingConfig(max_tokens=4)
        rollouts = sample(policy, step, problems, config, samples=16, seed=0, step=step, groups=range(3))
        rewards = rollouts.ended.astype(np.float32)
        learner.update(Batch(rollouts, rewards, (("",) * 16,) * 3), loss, 1.0)
        means.append(float(rewards.mean()))
    assert means[0] < 0.7
    assert sum(means[-3:]) / 3 > 0.9
