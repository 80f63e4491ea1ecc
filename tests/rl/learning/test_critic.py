"""Values and the critic's update, against one sequence at a time in float64, by autograd."""

import math
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rl.config import PolicyConfig
from rl.learning.critic import CriticLearner, explained_variance, token_values, value_loss
from rl.learning.critic_config import CriticConfig
from rl.learning.optimizer_config import OptimizerConfig
from rl.learning.packing import pack, rows_of
from rl.loading.parity import UnknownModelError, require_parity
from rl.loading.value import load_value_model
from rl.model.policy import Policy, save_policy
from rl.model.value import ValueModel, value_model
from rl.records import Batch, Rollouts
from tests.bench.architectures import Architecture, build
from tests.rl.architectures import each_of
from tests.rl.learning.test_packing import GROUPS, Make, filled
from tests.rl.updates import PLAIN, Judged

Targets = NDArray[np.float32]  # [P, G, T]

MIXED = [(2, [3, 1, 5]), (6, [2, 4, 3]), (1, [1, 7, 2])]
ONCE = CriticConfig(minibatches=1, value_clip=None)


def with_values(policy: Policy) -> ValueModel:
    """A value model whose values differ."""
    model = value_model(policy)
    torch.manual_seed(1)
    for parameter in _head(model.model).parameters():
        nn.init.normal_(parameter)
    return model


def within(rollouts: Rollouts, vocabulary: int) -> Rollouts:
    prompts = tuple(prompt % vocabulary for prompt in rollouts.prompts)
    return replace(rollouts, prompts=prompts, tokens=rollouts.tokens % vocabulary)


def _head(model: PreTrainedModel) -> nn.Linear:
    head: nn.Linear = model.get_output_embeddings()
    return head


def one_by_one(model: PreTrainedModel, rollouts: Rollouts) -> Tensor:
    """[P, G, T], differentiable, without packing."""
    found = torch.zeros(rollouts.tokens.shape, dtype=model.dtype)
    for (p, g), length in np.ndenumerate(rollouts.lengths):
        prompt = rollouts.prompts[p].tolist()
        ids = torch.tensor([[*prompt, *rollouts.tokens[p, g, :length].tolist()]])
        hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[0]
        found[p, g, :length] = _head(model)(hidden[len(prompt) - 1 : -1]).squeeze(-1)
    return found


def packed_values(model: ValueModel, rollouts: Rollouts, order: list[int], positions: float = math.inf) -> Tensor:
    """[P, G, T] by `token_values`."""
    packed = pack(rollouts, rows_of(rollouts, order, positions=positions), model.device)
    found = torch.zeros(rollouts.tokens.shape, dtype=model.model.dtype)
    found[packed.group, packed.sample, packed.token_index] = token_values(model, packed)
    return found


@pytest.mark.slow
@each_of()
def test_values_are_those_of_a_plain_forward_pass(
    architecture: Architecture, tokenizer: PreTrainedTokenizerBase, make_rollouts: Make, tmp_path: Path
) -> None:
    policy = Policy(build(architecture, len(tokenizer)), tokenizer, torch.device("cpu"), torch.float32)
    try:
        require_parity(policy, architecture.name)
    except UnknownModelError:
        return  # it is never trained
    rollouts = within(filled(make_rollouts, MIXED), len(tokenizer))
    model = value_model(policy)
    assert not packed_values(model, rollouts, [0, 1, 2]).any()
    model = with_values(model)
    with torch.no_grad():
        expected = one_by_one(model.model, rollouts)
    found = packed_values(model, rollouts, [0, 1, 2])
    assert expected.std() > 0.1
    assert (found - expected).abs().max() < 1e-4
    save_policy(model, tmp_path)
    loaded = load_value_model(str(tmp_path), PolicyConfig(device="cpu"), master=True)
    assert torch.equal(packed_values(loaded, rollouts, [0, 1, 2]), found)
    names = [set(each.weights()) for each in (model, loaded)]
    assert names[0] == names[1]


@pytest.mark.parametrize("name", ["qwen3", "llama", "gpt2", "gemma2"])
def test_values_are_those_of_float64(name: str, make_policy: Callable[..., Policy], make_rollouts: Make) -> None:
    model = with_values(make_policy(name))
    rollouts = within(filled(make_rollouts, MIXED), model.text.vocab_size)
    with torch.no_grad():
        expected = one_by_one(deepcopy(model.model).double(), rollouts)
    assert (packed_values(model, rollouts, [0, 1, 2]) - expected).abs().max() < 2e-5


def in_float64(make_policy: Callable[..., Policy]) -> ValueModel:
    """GPT-2, whose norms compute in the type of its weights: those of the others round to float32."""
    model = with_values(make_policy("gpt2"))
    return replace(model, model=model.model.double())


def test_values_are_exact_in_float64(make_policy: Callable[..., Policy], make_rollouts: Make) -> None:
    model = in_float64(make_policy)
    rollouts = within(filled(make_rollouts, MIXED), model.text.vocab_size)
    with torch.no_grad():
        expected = one_by_one(model.model, rollouts)
    found = packed_values(model, rollouts, [0, 1, 2])
    assert found.dtype == torch.float64
    assert (found - expected).abs().max() < 1e-12


@pytest.mark.slow
@given(groups=GROUPS, positions=st.integers(1, 60), data=st.data())
def test_values_do_not_depend_on_packing_and_order(
    make_policy: Callable[..., Policy],
    make_rollouts: Make,
    groups: list[tuple[int, list[int]]],
    positions: int,
    data: st.DataObject,
) -> None:
    model = in_float64(make_policy)
    rollouts = within(filled(make_rollouts, groups), model.text.vocab_size)
    order = data.draw(st.permutations(range(len(groups))))
    found = packed_values(model, rollouts, list(range(len(groups))))
    assert (found - packed_values(model, rollouts, order, positions)).abs().max() < 1e-12
    assert not found[~torch.from_numpy(np.arange(found.shape[2]) < rollouts.lengths[..., None])].any()


def test_in_bfloat16_values_are_those_of_float32_as_far_as_that_goes(
    make_policy: Callable[..., Policy], make_rollouts: Make
) -> None:
    model = with_values(make_policy())
    rollouts = within(filled(make_rollouts, MIXED), model.text.vocab_size)
    wide = packed_values(model, rollouts, [0, 1, 2])
    narrow = packed_values(replace(model, dtype=torch.bfloat16), rollouts, [0, 1, 2])
    assert 0 < (wide - narrow).abs().max() < 0.3


def drawn_batch(make_rollouts: Make, judged: Judged, model: ValueModel, seed: int = 0) -> tuple[Batch, Targets]:
    """A batch with values, and returns for its tokens."""
    random = np.random.default_rng(seed)
    rollouts = within(filled(make_rollouts, MIXED), model.text.vocab_size)
    values, returns = (random.normal(size=rollouts.tokens.shape).astype(np.float32) for _ in range(2))
    batch = judged(rollouts, random.integers(0, 2, (3, 3)).tolist())
    return replace(batch, values=values), returns


def gradient_of(learner: CriticLearner, batch: Batch, returns: Targets, config: CriticConfig) -> list[Tensor]:
    found: list[Tensor] = []
    step = learner.optimizer_step

    def watched(scale: float = 1.0, *, loss_scale: float = 1.0) -> float:
        found.extend(torch.zeros_like(p) if p.grad is None else p.grad / loss_scale for p in learner.parameters)
        return step(scale, loss_scale=loss_scale)

    learner.optimizer_step = watched  # type: ignore[method-assign]
    learner.update(batch, returns, config)
    return found


@pytest.mark.parametrize("name", ["qwen3", "llama", "gpt2", "gemma2"])
@pytest.mark.parametrize("clip", [None, 0.5])
def test_the_gradient_is_that_of_the_formula(
    name: str, clip: float | None, make_policy: Callable[..., Policy], make_rollouts: Make, judged: Judged
) -> None:
    model = with_values(make_policy(name))
    batch, returns = drawn_batch(make_rollouts, judged, model)
    batch.rewards[1, 2] = np.nan  # not judged: nothing is learned from it
    exact = deepcopy(model.model).double()
    values = one_by_one(exact, batch.rollouts)
    was, aim = torch.from_numpy(batch.values).double(), torch.from_numpy(returns).double()
    total, count = torch.zeros((), dtype=torch.float64), 0
    for (p, g), length in np.ndenumerate(batch.rollouts.lengths):
        for t in range(length if not np.isnan(batch.rewards[p, g]) else 0):
            error = (values[p, g, t] - aim[p, g, t]) ** 2
            if clip is not None:
                clipped = torch.clamp(values[p, g, t], was[p, g, t] - clip, was[p, g, t] + clip)
                error = torch.max(error, (clipped - aim[p, g, t]) ** 2)
            total, count = total + 0.5 * error, count + 1
    (total / count).backward()
    learner = CriticLearner(model, PLAIN)
    found = gradient_of(learner, batch, returns, CriticConfig(minibatches=1, value_clip=clip))
    expected = [torch.zeros_like(p) if p.grad is None else p.grad for p in exact.parameters()]
    assert sum(bool(each.any()) for each in expected) > 5
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() <= 1e-4 * other.norm() + 1e-6
    assert learner.learned is not None
    assert learner.learned.metrics["critic/loss"] == pytest.approx(float(total.detach()) / count, rel=1e-5)
    norm = torch.cat([each.flatten() for each in expected]).norm()
    assert learner.learned.metrics["critic/grad_norm"] == pytest.approx(float(norm), rel=1e-4)


def test_the_loss_has_the_gradient_of_its_formula() -> None:
    torch.manual_seed(0)
    values, before, returns = (torch.randn(20, dtype=torch.float64) for _ in range(3))
    values.requires_grad_()
    assert torch.autograd.gradcheck(lambda v: value_loss(v, before, returns, None), values)
    far = before + 0.9  # beyond the clip
    towards, away = value_loss(far, before, before + 2, 0.2), value_loss(far, before, before - 2, 0.2)
    assert torch.allclose(towards, torch.full_like(towards, (2 - 0.2) ** 2 / 2))  # the clipped one is larger
    assert torch.allclose(away, torch.full_like(away, (2 + 0.9) ** 2 / 2))


@pytest.mark.slow
def test_values_learn_what_they_are_trained_towards(
    make_policy: Callable[..., Policy], make_rollouts: Make, judged: Judged
) -> None:
    model = value_model(make_policy())
    rollouts = within(filled(make_rollouts, MIXED), model.text.vocab_size)
    learner = CriticLearner(model, OptimizerConfig(lr=1e-2, warmup_steps=0))
    returns = np.broadcast_to(np.float32([[[0.5]], [[0.0]], [[1.0]]]), rollouts.tokens.shape).copy()
    explained = []
    for step in range(40):
        values = packed_values(model, rollouts, [0, 1, 2]).numpy()
        batch = replace(judged(rollouts, [[0.0] * 3] * 3), values=values)
        learned = learner.update(batch, returns, CriticConfig(minibatches=3, epochs=2))
        assert learned.step == step + 1
        assert learned.applied
        explained.append(learned.metrics["critic/explained_variance"])
    assert explained[0] == pytest.approx(0.0)  # of constant values
    assert explained[-1] > 0.95
    assert learner.optimizer_steps == 40 * 3 * 2


def test_explained_variance_is_that_over_tokens() -> None:
    returns = np.float32([0.0, 1.0, 1.0, 0.0])
    assert explained_variance(returns, returns) == 1
    assert explained_variance(0 * returns + 7, returns) == 0
    assert explained_variance(1 - returns, returns) == pytest.approx(1 - np.var(2 * returns - 1) / np.var(returns))
    assert math.isnan(explained_variance(returns, 0 * returns))


def test_an_update_that_is_not_finite_changes_nothing_but_the_version(
    make_policy: Callable[..., Policy], make_rollouts: Make, judged: Judged
) -> None:
    model = with_values(make_policy())
    batch, returns = drawn_batch(make_rollouts, judged, model)
    learner = CriticLearner(model, PLAIN)
    before = {name: value.clone() for name, value in model.weights().items()}
    returns[0, 0, 0] = np.inf
    for refusals in (1, 2):
        learned = learner.update(batch, returns, ONCE)
        assert not learned.applied
        assert learned.refused == f"the loss of the critic's update {refusals} is not finite"
        assert learned.refusals == learner.refusals == refusals
    assert all(torch.equal(value, before[name]) for name, value in model.weights().items())
    assert learner.optimizer_steps == 0
    returns[0, 0, 0] = 0
    assert learner.update(batch, returns, ONCE).applied
    assert (learner.refusals, learner.step) == (0, 3)


def test_a_batch_without_verdicts_teaches_nothing(
    make_policy: Callable[..., Policy], make_rollouts: Make, judged: Judged
) -> None:
    model = with_values(make_policy())
    batch, returns = drawn_batch(make_rollouts, judged, model)
    batch.rewards[:] = np.nan
    learned = CriticLearner(model, PLAIN).update(batch, returns, ONCE)
    assert (learned.step, learned.applied, learned.groups) == (1, False, 0)


def test_what_is_saved_goes_on_bit_for_bit(
    make_policy: Callable[..., Policy], make_rollouts: Make, judged: Judged, tmp_path: Path
) -> None:
    config = CriticConfig(minibatches=2, epochs=2)
    optimizer = OptimizerConfig(lr=1e-3, name="muon")
    model = with_values(make_policy())
    learner = CriticLearner(model, optimizer)
    for seed in range(2):
        learner.update(*drawn_batch(make_rollouts, judged, model, seed), config)
    learner.save(tmp_path)
    other = CriticLearner(load_value_model(str(tmp_path), PolicyConfig(device="cpu"), master=True), optimizer)
    other.restore(tmp_path)
    assert other.learned == learner.learned
    for each in (learner, other):
        each.update(*drawn_batch(make_rollouts, judged, model, 3), config)
    assert all(torch.equal(value, other.policy.weights()[name]) for name, value in learner.policy.weights().items())
    assert (other.step, other.optimizer_steps) == (3, 12)
    assert other.learned == learner.learned
