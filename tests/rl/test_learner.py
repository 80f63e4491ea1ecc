import math
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedModel

from rl import learner as learner_module
from rl.config import LossConfig, OptimizerConfig, PolicyConfig, SamplingConfig
from rl.learner import Learner, loss_scale
from rl.loading import load_policy
from rl.policy import Policy, save_policy
from rl.records import Batch, Problem
from rl.sampler import sample

Make = Callable[..., Policy]
Judged = Callable[..., Batch]
State = dict[str, Tensor]

REINFORCE = LossConfig(name="reinforce")
GRPO = LossConfig(name="grpo")
PLAIN = OptimizerConfig(lr=1e-3, warmup_steps=0)
REWARDS = [[1, 0, 0, 1], [1, 1, 1, 1], [0, 1, 0.5, 0]]  # the group in the middle does not vary
UNJUDGED = [(0, 3), (2, 0), (2, 2)]  # two with a verdict are left of the last group


@pytest.fixture
def drawn(problems: list[Problem], judged: Judged) -> Callable[..., Batch]:
    """A batch of three groups of four, sampled from the policy."""

    def draw(policy: Policy, temperature: float = 1.0, step: int = 0) -> Batch:
        config = SamplingConfig(max_tokens=8, temperature=temperature)
        return judged(sample(policy, 0, problems, config, samples=4, seed=0, step=step, groups=range(3)), REWARDS)

    return draw


def weights(learner: Learner) -> State:
    return {name: value.clone() for name, value in learner.policy.model.state_dict().items()}


def moments(learner: Learner) -> State:
    """The optimizers' state, by parameter and name."""
    return {
        f"{index}.{name}": value.clone()
        for index, parameter in enumerate(learner.parameters)
        for optimizer in learner.optimizers
        for name, value in optimizer.state.get(parameter, {}).items()
    }


def identical(one: State, other: State) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def gradient_of(learner: Learner, batch: Batch, loss: LossConfig = REINFORCE, temperature: float = 1.0) -> list[Tensor]:
    """The gradient that the update arrives at, before clipping."""
    found: list[Tensor] = []
    optimizer_step = learner.optimizer_step

    def watched(scale: float = 1.0, *, loss_scale: float = 1.0) -> float:
        del found[:]
        found.extend(torch.zeros_like(p) if p.grad is None else p.grad / loss_scale for p in learner.parameters)
        return optimizer_step(scale, loss_scale=loss_scale)

    learner.optimizer_step = watched  # type: ignore[method-assign]
    learner.update(batch, loss, temperature)
    return found


def off_policy(batch: Batch, spread: float) -> Batch:
    """The same batch as if an older policy had sampled it."""
    noise = np.random.default_rng(0).normal(0, spread, batch.rollouts.logprobs.shape).astype(np.float32)
    return replace(batch, rollouts=replace(batch.rollouts, logprobs=batch.rollouts.logprobs + noise))


# -- the gradient


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("loss", [REINFORCE, GRPO], ids=["reinforce", "grpo"])
@pytest.mark.parametrize(("name", "unjudged"), [("qwen3", []), ("llama", []), ("gpt2", []), ("qwen3", UNJUDGED)])
def test_the_gradient_is_that_of_a_loop_over_unpadded_sequences_in_float64(
    name: str,
    unjudged: list[tuple[int, int]],
    loss: LossConfig,
    temperature: float,
    make_policy: Make,
    drawn: Callable[..., Batch],
    exactly: Callable[[PreTrainedModel], PreTrainedModel],
    alone: Callable[..., Tensor],
) -> None:
    policy = make_policy(name, eager=4.0)
    batch = off_policy(drawn(policy, temperature), 0.5)
    for place in unjudged:
        batch.rewards[place] = math.nan
    rollouts, reference = batch.rollouts, exactly(policy.model)
    kept = [p for p, row in enumerate(REWARDS) if len(set(row)) > 1]
    judged = {p: [g for g in range(4) if (p, g) not in unjudged] for p in kept}
    tokens = sum(int(rollouts.lengths[p, g]) for p in kept for g in judged[p])
    total = torch.zeros((), dtype=torch.float64)
    for p in kept:
        known = [REWARDS[p][g] for g in judged[p]]
        mean = sum(known) / len(known)
        deviation = math.sqrt(sum((reward - mean) ** 2 for reward in known) / (len(known) - 1))
        for g in judged[p]:
            length = int(rollouts.lengths[p, g])
            pi = alone(reference, rollouts.prompts[p], rollouts.tokens[p, g, :length], temperature)
            ratio = (pi - torch.from_numpy(rollouts.logprobs[p, g, :length]).double()).exp()
            advantage = REWARDS[p][g] - mean
            if loss.name == "reinforce":
                total = total - (advantage * ratio.detach().clamp(max=2.0) * pi).sum() / tokens
            else:
                advantage /= deviation + 1e-6
                bound = torch.minimum(ratio * advantage, ratio.clamp(0.8, 1.2) * advantage)
                if advantage < 0:
                    bound = bound.clamp(min=3 * advantage)
                total = total - bound.mean() / sum(map(len, judged.values()))
    total.backward()
    expected = [p.grad for p in reference.parameters()]

    learner = Learner(policy, PLAIN)
    found = gradient_of(learner, batch, loss, temperature)
    assert learner.learned is not None
    assert learner.learned.loss == pytest.approx(float(total.detach()), abs=1e-5)
    norm = torch.cat([gradient.flatten() for gradient in expected if gradient is not None]).norm()
    assert learner.learned.grad_norm == pytest.approx(float(norm), rel=1e-4)
    assert norm > 0.01
    for one, other in zip(found, expected, strict=True):
        assert other is not None
        torch.testing.assert_close(one.double(), other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("loss", [REINFORCE, GRPO], ids=["reinforce", "grpo"])
def test_groups_without_variance_contribute_nothing(
    loss: LossConfig, make_policy: Make, drawn: Callable[..., Batch]
) -> None:
    batch = drawn(make_policy(eager=4.0))
    whole, part = Learner(make_policy(eager=4.0), PLAIN), Learner(make_policy(eager=4.0), PLAIN)
    with_it, without = gradient_of(whole, batch, loss), gradient_of(part, batch.select([0, 2]), loss)
    assert all(torch.equal(one, other) for one, other in zip(with_it, without, strict=True))
    assert identical(weights(whole), weights(part))
    assert whole.learned == part.learned
    assert whole.learned is not None
    assert whole.learned.groups == 2


def test_the_split_into_microbatches_does_not_change_the_gradient(
    make_policy: Make, drawn: Callable[..., Batch]
) -> None:
    batch = drawn(make_policy(eager=4.0))
    found = [
        gradient_of(Learner(make_policy(eager=4.0), PLAIN.model_copy(update={"microbatch_tokens": tokens})), batch)
        for tokens in (1, 10_000)
    ]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


# -- truncated and long completions


def test_masked_completions_give_no_gradient_and_still_count_in_the_baseline(
    make_policy: Make,
    drawn: Callable[..., Batch],
    exactly: Callable[..., PreTrainedModel],
    alone: Callable[..., Tensor],
) -> None:
    policy = make_policy(eager=4.0)
    batch = drawn(policy).select([0, 2])
    rollouts, reference = batch.rollouts, exactly(policy.model)
    assert 0 < rollouts.ended.sum() < rollouts.ended.size
    tokens = int(rollouts.lengths[rollouts.ended].sum())
    total = torch.zeros((), dtype=torch.float64)
    for p, g in zip(*rollouts.ended.nonzero(), strict=True):
        length = int(rollouts.lengths[p, g])
        pi = alone(reference, rollouts.prompts[p], rollouts.tokens[p, g, :length])
        total = total - (float(batch.rewards[p, g] - batch.rewards[p].mean()) * pi).sum() / tokens
    total.backward()
    learner = Learner(policy, PLAIN)
    found = gradient_of(learner, batch, LossConfig(mask_truncated=True))
    for one, other in zip(found, reference.parameters(), strict=True):
        assert other.grad is not None
        torch.testing.assert_close(one.double(), other.grad, atol=1e-5, rtol=1e-4)


def test_a_batch_of_masked_completions_has_nothing_to_teach(make_policy: Make, drawn: Callable[..., Batch]) -> None:
    policy = make_policy(eager=4.0)
    batch = drawn(policy)
    cut = replace(batch, rollouts=replace(batch.rollouts, ended=np.zeros_like(batch.rollouts.ended)))
    learned = Learner(policy, PLAIN).update(cut, LossConfig(mask_truncated=True), 1.0)
    assert (learned.applied, learned.refused) == (False, "")


def test_long_completions_are_worth_less_with_the_overlong_penalty(
    make_policy: Make, drawn: Callable[..., Batch]
) -> None:
    policy = make_policy(eager=4.0)
    batch = drawn(policy).select([0, 2])
    penalty = np.clip((8 - 4 - batch.rollouts.lengths) / 4, -1, 0).astype(np.float32)
    assert (penalty < 0).any()
    assert (penalty == 0).any()
    by_hand = gradient_of(Learner(make_policy(eager=4.0), PLAIN), replace(batch, rewards=batch.rewards + penalty))
    learner = Learner(policy, PLAIN)
    update = learner.update
    learner.update = lambda batch, loss, temperature: update(batch, loss, temperature, 8)  # type: ignore[method-assign]
    found = gradient_of(learner, batch, LossConfig(overlong=4))
    assert all(torch.equal(one, other) for one, other in zip(found, by_hand, strict=True))


# -- float16


def test_a_float16_gradient_of_a_large_batch_is_that_of_float64(
    make_policy: Make,
    drawn: Callable[..., Batch],
    exactly: Callable[[PreTrainedModel], PreTrainedModel],
    alone: Callable[..., Tensor],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy = make_policy("llama", eager=4.0)
    batch = drawn(policy).select([0, 2])
    rollouts, reference, tokens = batch.rollouts, exactly(policy.model), 300_000
    total = torch.zeros((), dtype=torch.float64)
    for p in range(2):
        for g, length in enumerate(rollouts.lengths[p]):
            pi = alone(reference, rollouts.prompts[p], rollouts.tokens[p, g, :length])
            total = total - (float(batch.rewards[p, g] - batch.rewards[p].mean()) * pi).sum() / tokens
    total.backward()
    expected = torch.cat([p.grad.flatten() for p in reference.parameters() if p.grad is not None])

    # every token weighs as little as in a batch of so many
    monkeypatch.setattr(learner_module, "token_weights", lambda of, _: np.full(of.shape, 1 / tokens, dtype=np.float32))
    errors = []
    for scale in (1.0, loss_scale(torch.float16, tokens)):
        monkeypatch.setattr(learner_module, "loss_scale", lambda *_, scale=scale: scale)
        half = replace(make_policy("llama", eager=4.0), dtype=torch.float16)
        found = torch.cat([gradient.flatten() for gradient in gradient_of(Learner(half, PLAIN), batch)]).double()
        errors.append(float((found - expected).norm() / expected.norm()))
    assert errors[0] > 0.05
    assert errors[1] < 0.01


def test_a_scale_that_overflows_is_lowered_and_the_update_made(make_policy: Make, drawn: Callable[..., Batch]) -> None:
    batch = drawn(make_policy("llama", eager=4.0))
    found = []
    for scale in (2.0**4, 2.0**40):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(learner_module, "loss_scale", lambda *_, scale=scale: scale)
            half = replace(make_policy("llama", eager=4.0), dtype=torch.float16)
            learner = Learner(half, PLAIN)
            found.append(learner.update(batch, REINFORCE, 1.0))
            assert all(torch.isfinite(parameter).all() for parameter in learner.parameters)
    assert all(learned.applied for learned in found)
    assert found[1].grad_norm == pytest.approx(found[0].grad_norm, rel=0.01)


def test_only_float16_is_scaled_and_by_a_power_of_two() -> None:
    assert loss_scale(torch.float32, 300_000) == loss_scale(torch.bfloat16, 300_000) == 1
    assert loss_scale(torch.float16, 10) == 1
    for tokens in (5_000, 300_000):
        share = loss_scale(torch.float16, tokens) / tokens
        assert 2**-5 <= share <= 2**-4
        assert math.log2(loss_scale(torch.float16, tokens)).is_integer()


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


def test_an_update_on_its_own_samples_is_on_policy(make_policy: Make, drawn: Callable[..., Batch]) -> None:
    policy = make_policy(eager=4.0)
    batch = drawn(policy)
    learned = Learner(policy, PLAIN).update(batch, GRPO, 1.0)
    assert learned.applied
    assert (learned.step, learned.refused, learned.refusals) == (1, "", 0)
    assert learned.mismatch_kl == pytest.approx(0, abs=1e-6)
    assert learned.clip_fraction == 0
    assert (learned.staleness_mean, learned.staleness_max) == (0, 0)


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
    assert learned.entropy == pytest.approx(entropy / sum(lengths), rel=1e-4)
    assert learned.mismatch_kl == pytest.approx(kl / sum(lengths), rel=1e-3)
    assert learned.clip_fraction == pytest.approx(capped / sum(lengths))
    assert learned.staleness_max == 2
    assert learned.staleness_mean == pytest.approx(2 * lengths[0] / sum(lengths))


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
    assert learner.applied == 1
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
        assert (learned.refusals, learned.step, learner.step, learner.applied) == (row, row + 1, row + 1, 1)
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


# -- what survives the process

CONTINUE = """
import pickle, sys
from pathlib import Path
import torch
from rl.config import OptimizerConfig, PolicyConfig, LossConfig
from rl.learner import Learner
from rl.loading import load_policy
saved, batch, out, name, threads = sys.argv[1:]
torch.set_num_threads(int(threads))
policy = load_policy(saved, PolicyConfig(device="cpu"), master=True)
learner = Learner(policy, OptimizerConfig(name=name, lr=1e-3, warmup_steps=4))
learner.restore(Path(saved))
learner.update(pickle.loads(Path(batch).read_bytes()), LossConfig(), 1.0)
learner.save(Path(out))
"""


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_new_process_goes_on_bit_for_bit(
    optimizer: str, tmp_path: Path, make_policy: Make, drawn: Callable[..., Batch]
) -> None:
    policy = make_policy("llama")
    config = OptimizerConfig(name=optimizer, lr=1e-3, warmup_steps=4)
    learner = Learner(policy, config)
    for step in range(2):
        learner.update(drawn(policy, step=step), REINFORCE, 1.0)
    learner.refusals = 2
    learner.save(tmp_path / "saved")
    batch = drawn(policy, step=2)
    (tmp_path / "batch").write_bytes(pickle.dumps(batch))

    places = [str(tmp_path / name) for name in ("saved", "batch", "other")]
    subprocess.run(
        [sys.executable, "-c", CONTINUE, *places, optimizer, str(torch.get_num_threads())],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        check=True,
        timeout=120,
    )
    learner.update(batch, REINFORCE, 1.0)
    learner.save(tmp_path / "one")
    for name in ("model", "optimizer"):
        one, other = (load_file(tmp_path / process / f"{name}.safetensors") for process in ("one", "other"))
        assert identical(one, other)
    assert (tmp_path / "one/learner.json").read_text() == (tmp_path / "other/learner.json").read_text()


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_restoring_takes_over_counters_and_random_state_and_goes_on_bit_for_bit(
    name: str, optimizer: str, tmp_path: Path, make_policy: Make, drawn: Callable[..., Batch]
) -> None:
    config = OptimizerConfig(name=optimizer, lr=1e-3, warmup_steps=4)
    policy = make_policy(name)
    learner = Learner(policy, config, step=5)
    learner.update(drawn(policy), REINFORCE, 1.0)
    learner.save(tmp_path)
    next_numbers = torch.rand(3)
    batch = drawn(policy, step=1)
    learner.update(batch, REINFORCE, 1.0)

    other = Learner(make_policy(name, seed=1), config)
    other.update(drawn(other.policy), REINFORCE, 1.0)  # another state, to be replaced
    other.restore(tmp_path)
    assert torch.equal(torch.rand(3), next_numbers)
    assert (other.step, other.applied, other.refusals) == (6, 1, 0)
    assert other.learned is not None
    assert (other.learned.step, other.learned.applied) == (6, True)
    other.update(batch, REINFORCE, 1.0)
    assert identical(weights(other), weights(learner))
    assert identical(moments(other), moments(learner))


def test_a_learner_that_has_not_learned_yet_is_saved_and_restored(
    tmp_path: Path, make_policy: Make, drawn: Callable[..., Batch]
) -> None:
    Learner(make_policy(), PLAIN, step=3).save(tmp_path)
    other = Learner(make_policy(seed=1), PLAIN)
    other.update(drawn(other.policy), REINFORCE, 1.0)  # moments that have to go
    assert moments(other)
    other.restore(tmp_path)
    assert (other.step, other.applied, other.learned, moments(other)) == (3, 0, None, {})
    assert identical(weights(other), weights(Learner(make_policy(), PLAIN)))


# -- learning


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("loss", [REINFORCE, GRPO], ids=["reinforce", "grpo"])
def test_training_on_a_trivial_problem_raises_the_reward(
    loss: LossConfig, optimizer: str, make_policy: Make, problems: list[Problem]
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


def test_a_bfloat16_learner_has_float32_weights_and_nearly_the_same_gradient(
    tmp_path: Path, make_policy: Make, drawn: Callable[..., Batch]
) -> None:
    policy = make_policy("llama")
    save_policy(policy, tmp_path)
    half = load_policy(str(tmp_path), PolicyConfig(device="cpu", dtype="bfloat16"), master=True)
    batch = drawn(policy)
    coarse = gradient_of(Learner(half, PLAIN), batch)
    fine = gradient_of(Learner(policy, PLAIN), batch)
    assert {gradient.dtype for gradient in coarse} == {torch.float32}
    one, other = (torch.cat([gradient.flatten() for gradient in gradients]) for gradients in (coarse, fine))
    assert 1e-4 < float((one - other).norm() / other.norm()) < 0.1
