"""The gradient of an update."""

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rl.algorithms.reinforce import Reinforce
from rl.config import PolicyConfig
from rl.learning import optimized as optimized_module
from rl.learning import update as update_module
from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.learner import Learner
from rl.learning.optimized import loss_scale
from rl.learning.packing import Packed
from rl.loading.policy import load_policy
from rl.model.policy import Policy, save_policy
from rl.records import Batch
from tests.rl.updates import (
    GRPO,
    PLAIN,
    REINFORCE,
    REWARDS,
    UNJUDGED,
    Make,
    gradient_of,
    identical,
    off_policy,
    weights,
)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("loss", [REINFORCE, GRPO], ids=["reinforce", "grpo"])
@pytest.mark.parametrize(("name", "unjudged"), [("qwen3", []), ("llama", []), ("gpt2", []), ("qwen3", UNJUDGED)])
def test_the_gradient_is_that_of_a_loop_over_unpadded_sequences_in_float64(
    name: str,
    unjudged: list[tuple[int, int]],
    loss: AlgorithmSpec,
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
    assert learner.learned.metrics["loss/policy"] == pytest.approx(float(total.detach()), abs=1e-5)
    norm = torch.cat([gradient.flatten() for gradient in expected if gradient is not None]).norm()
    assert learner.learned.metrics["policy/grad_norm"] == pytest.approx(float(norm), rel=1e-4)
    assert norm > 0.01
    for one, other in zip(found, expected, strict=True):
        assert other is not None
        torch.testing.assert_close(one.double(), other, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("loss", [REINFORCE, GRPO], ids=["reinforce", "grpo"])
def test_groups_without_variance_contribute_nothing(
    loss: AlgorithmSpec, make_policy: Make, drawn: Callable[..., Batch]
) -> None:
    batch = drawn(make_policy(eager=4.0))
    whole, part = Learner(make_policy(eager=4.0), PLAIN), Learner(make_policy(eager=4.0), PLAIN)
    with_it, without = gradient_of(whole, batch, loss), gradient_of(part, batch.select([0, 2]), loss)
    assert all(torch.equal(one, other) for one, other in zip(with_it, without, strict=True))
    assert identical(weights(whole), weights(part))
    assert whole.learned == part.learned
    assert whole.learned is not None
    assert whole.learned.groups == 2


@pytest.mark.parametrize(("positions", "balance"), [(1, math.inf), (40, math.inf), (10_000, 0.0)])
def test_the_split_into_passes_and_rows_does_not_change_the_gradient(
    positions: int, balance: float, make_policy: Make, drawn: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = drawn(make_policy(eager=4.0))
    whole = Learner(make_policy(eager=4.0), PLAIN)
    split = Learner(make_policy(eager=4.0), PLAIN.model_copy(update={"microbatch_tokens": positions}))
    monkeypatch.setattr(split.accumulation, "_balance", balance)
    shapes: list[torch.Size] = []
    scores = update_module.token_scores

    def watched(policy: Policy, packed: Packed, *of: Any, **more: Any) -> tuple[Tensor, Tensor]:
        shapes.append(packed.tokens.shape)
        return scores(policy, packed, *of, **more)

    monkeypatch.setattr(update_module, "token_scores", watched)
    expected = gradient_of(whole, batch)
    together = shapes.copy()
    found = gradient_of(split, batch)
    assert shapes[len(together) :] != together
    for one, other in zip(found, expected, strict=True):
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
    found = gradient_of(learner, batch, AlgorithmSpec(mask_truncated=True))
    for one, other in zip(found, reference.parameters(), strict=True):
        assert other.grad is not None
        torch.testing.assert_close(one.double(), other.grad, atol=1e-5, rtol=1e-4)


def test_a_batch_of_masked_completions_has_nothing_to_teach(make_policy: Make, drawn: Callable[..., Batch]) -> None:
    policy = make_policy(eager=4.0)
    batch = drawn(policy)
    cut = replace(batch, rollouts=replace(batch.rollouts, ended=np.zeros_like(batch.rollouts.ended)))
    learned = Learner(policy, PLAIN).update(cut, AlgorithmSpec(mask_truncated=True), 1.0)
    assert (learned.applied, learned.refused) == (False, "")
    assert learned.metrics == {"groups/used": 0}
    assert Learner(policy, PLAIN).update(batch, AlgorithmSpec(), 1.0).metrics["groups/used"] == batch.with_signal.sum()


def test_long_completions_are_worth_less_with_the_overlong_penalty(
    make_policy: Make, drawn: Callable[..., Batch]
) -> None:
    policy = make_policy(eager=4.0)
    batch = drawn(policy).select([0, 2])
    penalty = np.clip((8 - 4 - batch.rollouts.lengths) / 4, -1, 0).astype(np.float32)
    assert (penalty < 0).any()
    assert (penalty == 0).any()
    by_hand = gradient_of(Learner(make_policy(eager=4.0), PLAIN), replace(batch, rewards=batch.rewards + penalty))
    found = gradient_of(Learner(policy, PLAIN), batch, AlgorithmSpec(overlong=4), max_tokens=8)
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
    monkeypatch.setattr(Reinforce, "token_weights", lambda _, of, __: np.full(of.shape, 1 / tokens, dtype=np.float32))
    errors = []
    for scale in (1.0, loss_scale(torch.float16, tokens)):
        monkeypatch.setattr(optimized_module, "loss_scale", lambda *_, scale=scale: scale)
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
            patch.setattr(optimized_module, "loss_scale", lambda *_, scale=scale: scale)
            half = replace(make_policy("llama", eager=4.0), dtype=torch.float16)
            learner = Learner(half, PLAIN)
            found.append(learner.update(batch, REINFORCE, 1.0))
            assert all(torch.isfinite(parameter).all() for parameter in learner.parameters)
    assert all(learned.applied for learned in found)
    assert found[1].metrics["policy/grad_norm"] == pytest.approx(found[0].metrics["policy/grad_norm"], rel=0.01)


def test_only_float16_is_scaled_and_by_a_power_of_two() -> None:
    assert loss_scale(torch.float32, 300_000) == loss_scale(torch.bfloat16, 300_000) == 1
    assert loss_scale(torch.float16, 10) == 1
    for tokens in (5_000, 300_000):
        share = loss_scale(torch.float16, tokens) / tokens
        assert 2**-5 <= share <= 2**-4
        assert math.log2(loss_scale(torch.float16, tokens)).is_integer()


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
