from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedModel

from rl.learning.logprobs import token_scores
from rl.learning.optimizer_config import OptimizerConfig
from rl.learning.packing import Packed, Row, microbatches, pack, rows_of
from rl.learning.passes import Accumulation, Passes
from rl.model.policy import Policy
from rl.records import Rollouts

Make = Callable[..., Rollouts]
CPU = torch.device("cpu")
GROUP = st.tuples(st.integers(1, 6), st.lists(st.integers(1, 5), min_size=3, max_size=3))
GROUPS = st.lists(GROUP, min_size=1, max_size=6)


def filled(make: Make, groups: list[tuple[int, list[int]]]) -> Rollouts:
    """Rollouts of the given prompt and completion lengths, with token ids that are all different."""
    ids = iter(range(1, 10_000))
    prompts = [[next(ids) for _ in range(prompt)] for prompt, _ in groups]
    return make(prompts, [[[next(ids) for _ in range(length)] for length in lengths] for _, lengths in groups])


def scores(policy: Policy, rollouts: Rollouts, groups: list[int]) -> Tensor:
    with torch.no_grad():
        logprobs, _ = token_scores(policy, pack(rollouts, rows_of(rollouts, groups), CPU), 1.0)
    return logprobs


@given(GROUPS)
def test_every_completion_token_is_predicted_from_the_token_before_it(
    make_rollouts: Make, groups: list[tuple[int, list[int]]]
) -> None:
    rollouts = filled(make_rollouts, groups)
    order = list(range(len(groups)))[::-1]
    packed = pack(rollouts, rows_of(rollouts, order), CPU)
    assert len(packed.targets) == rollouts.generated_tokens
    named = zip(packed.group.tolist(), packed.sample.tolist(), packed.token_index.tolist(), strict=True)
    for n, (p, g, t) in enumerate(named):
        row = int(packed.rows[n])
        assert order[row] == p
        assert int(packed.targets[n]) == rollouts.tokens[p, g, t]
        before = rollouts.tokens[p, g, t - 1] if t else rollouts.prompts[p][-1]
        assert int(packed.tokens[row, packed.logit_positions[n]]) == before
        assert int(packed.positions[row, packed.logit_positions[n]]) == len(rollouts.prompts[p]) + t - 1


@given(GROUPS)
def test_a_token_sees_its_prompt_and_its_own_completion_up_to_itself(
    make_rollouts: Make, groups: list[tuple[int, list[int]]]
) -> None:
    rollouts = filled(make_rollouts, groups)
    packed = pack(rollouts, rows_of(rollouts, range(len(groups))), CPU)
    for row, (prompt, lengths) in enumerate(groups):
        start = prompt
        sequences = [packed.tokens[row, :prompt].tolist()]
        assert sequences[0] == rollouts.prompts[row].tolist()
        for length in lengths:
            for t in range(length):
                seen = packed.mask[row, 0, start + t].nonzero().squeeze(1).tolist()
                assert seen == [*range(prompt), *range(start, start + t + 1)]
            start += length
        for t in range(prompt):
            assert packed.mask[row, 0, t].nonzero().squeeze(1).tolist() == list(range(t + 1))
        for t in range(start, packed.tokens.shape[1]):  # padding sees itself, and nobody else sees it
            assert packed.mask[row, 0, :, t].nonzero().squeeze(1).tolist() == [t]


@given(GROUPS, st.integers(1, 120), st.floats(0, 1000), st.data())
def test_passes_hold_every_completion_once_within_the_budget(
    make_rollouts: Make, groups: list[tuple[int, list[int]]], positions: int, balance: float, data: st.DataObject
) -> None:
    rollouts = filled(make_rollouts, groups)
    chosen = data.draw(st.lists(st.sampled_from(range(len(groups))), unique=True))
    rows = rows_of(rollouts, chosen, balance=balance, positions=positions)
    passes = list(microbatches(rollouts, rows, positions))
    held = [(row.group, sample) for part in passes for row in part for sample in range(row.first, row.end)]
    assert sorted(held) == [(group, sample) for group in sorted(chosen) for sample in range(3)]
    for part in passes:
        packed = pack(rollouts, part, CPU)
        assert packed.tokens.shape == (len(part), max(row.length(rollouts) for row in part))
        assert packed.tokens.numel() <= positions or (len(part), part[0].end - part[0].first) == (1, 1)


def arithmetic(rollouts: Rollouts, rows: list[Row], balance: float) -> float:
    return sum(row.length(rollouts) * (balance + row.length(rollouts)) for row in rows)


@pytest.mark.parametrize("prompt", [5, 60, 200])
@pytest.mark.parametrize("length", [4, 120, 1000])
def test_as_many_completions_share_a_row_as_take_the_least_arithmetic(
    make_rollouts: Make, prompt: int, length: int
) -> None:
    rollouts = make_rollouts([range(prompt)], [[range(length)] * 8])
    balance = 3840
    found = {
        parts: arithmetic(rollouts, [Row(0, 8 * at // parts, 8 * (at + 1) // parts) for at in range(parts)], balance)
        for parts in (1, 2, 4, 8)
    }
    rows = rows_of(rollouts, [0], balance=balance)
    assert arithmetic(rollouts, rows, balance) <= 1.06 * min(found.values())
    assert {(5, 4): 1, (60, 120): 2, (200, 1000): 8}.get((prompt, length), len(rows)) == len(rows)


@pytest.mark.parametrize("name", ["qwen3", "llama", "gpt2"])
def test_packed_log_probs_are_those_of_each_sequence_alone(
    name: str,
    make_policy: Callable[..., Policy],
    make_rollouts: Make,
    exactly: Callable[[PreTrainedModel], PreTrainedModel],
    alone: Callable[..., Tensor],
) -> None:
    policy = make_policy(name)
    rollouts = filled(make_rollouts, [(2, [3, 1, 6]), (9, [1, 1, 4]), (1, [7, 2, 2])])
    reference, expected = exactly(policy.model), []
    for p, prompt in enumerate(rollouts.prompts):
        for g, length in enumerate(rollouts.lengths[p]):
            with torch.no_grad():
                expected.append(alone(reference, prompt, rollouts.tokens[p, g, :length]))
    torch.testing.assert_close(scores(policy, rollouts, [0, 1, 2]).double(), torch.cat(expected), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", ["qwen3", "llama", "gpt2"])
@settings(max_examples=20, deadline=None)  # of a shared machine
@given(GROUPS, st.integers(1, 120), st.floats(0, 1000), st.booleans(), st.none() | st.integers(1, 20))
def test_however_they_are_packed_their_gradient_is_that_of_each_sequence_alone(
    name: str,
    make_policy: Callable[..., Policy],
    make_rollouts: Make,
    exactly: Callable[[PreTrainedModel], PreTrainedModel],
    alone: Callable[..., Tensor],
    groups: list[tuple[int, list[int]]],
    positions: int,
    balance: float,
    checkpointing: bool,
    chunk: int | None,
) -> None:
    policy = make_policy(name)
    policy = Policy(exactly(policy.model), policy.tokenizer, CPU, torch.float64)
    rollouts = filled(make_rollouts, groups)
    weight = torch.from_numpy(np.random.default_rng(0).normal(size=rollouts.tokens.shape))
    for p, prompt in enumerate(rollouts.prompts):
        for g, length in enumerate(rollouts.lengths[p]):
            logprobs = alone(policy.model, prompt, rollouts.tokens[p, g, :length])
            (weight[p, g, :length] * logprobs).sum().backward()
    expected = {each: parameter.grad.clone() for each, parameter in policy.model.named_parameters()}
    policy.model.zero_grad(set_to_none=True)

    def add(packed: Packed, checkpointing: bool) -> dict[str, float]:
        each = weight[packed.group, packed.sample, packed.token_index]
        loss = lambda logprobs, part: (each[part] * logprobs).sum()  # noqa: E731
        token_scores(policy, packed, 1.0, loss, checkpointing=checkpointing)
        return {}

    accumulation = Accumulation(policy, OptimizerConfig())
    accumulation.passes, accumulation._balance = Passes(positions, checkpointing, chunk), balance
    accumulation.add(rollouts, range(len(groups)), add)
    apart = 1e-12 if name == "gpt2" else 5e-6  # norms of the others are in float32
    for each, parameter in policy.model.named_parameters():
        assert (parameter.grad - expected[each]).norm() <= apart * (expected[each].norm() + 1), each


@pytest.mark.parametrize("name", ["qwen3", "llama", "gpt2"])
def test_completions_are_blind_to_each_other(
    name: str, make_policy: Callable[..., Policy], make_rollouts: Make
) -> None:
    policy = make_policy(name)
    rollouts = filled(make_rollouts, [(3, [4, 5, 2]), (5, [2, 3, 3])])
    tokens = rollouts.tokens.copy()
    tokens[0, 1, :5] += 100
    before, after = (scores(policy, r, [0, 1]) for r in (rollouts, replace(rollouts, tokens=tokens)))
    packed = pack(rollouts, rows_of(rollouts, [0, 1]), CPU)
    changed = (packed.group == 0) & (packed.sample == 1)
    assert int(changed.sum()) == 5
    torch.testing.assert_close(after[~changed], before[~changed], atol=1e-6, rtol=0)
    assert ((after - before)[changed].abs() > 1e-3).all()


def test_a_group_scores_the_same_in_a_wider_batch(make_policy: Callable[..., Policy], make_rollouts: Make) -> None:
    policy = make_policy()
    rollouts = filled(make_rollouts, [(3, [4, 5, 2]), (30, [9, 12, 20])])
    alone, beside = scores(policy, rollouts, [0]), scores(policy, rollouts, [0, 1])
    torch.testing.assert_close(beside[: len(alone)], alone, atol=1e-5, rtol=0)


def test_rows_are_padded_with_a_token_of_theirs(make_rollouts: Make) -> None:
    """Of another, such as 0, a model may have a vector that its gradient cannot pass: all zeros."""
    rollouts = filled(make_rollouts, [(3, [4, 5, 2]), (2, [1, 1, 1])])
    packed = pack(rollouts, rows_of(rollouts, [0, 1]), CPU)
    assert not (packed.tokens == 0).any()


def test_nothing_behind_a_completion_is_read(make_policy: Callable[..., Policy], make_rollouts: Make) -> None:
    policy = make_policy()
    rollouts = filled(make_rollouts, [(3, [4, 5, 2])])
    tokens = np.where(rollouts.tokens == 0, 77, rollouts.tokens)
    assert (tokens != rollouts.tokens).any()
    assert torch.equal(scores(policy, rollouts, [0]), scores(policy, replace(rollouts, tokens=tokens), [0]))


def test_rows_of_one_completion_need_no_mask_and_their_padding_is_behind_them(
    make_policy: Callable[..., Policy], make_rollouts: Make
) -> None:
    rollouts = filled(make_rollouts, [(2, [3, 1, 5]), (6, [2, 4, 3])])
    together = pack(rollouts, rows_of(rollouts, [0, 1]), CPU, causal=True)
    assert isinstance(together.mask, torch.Tensor)
    alone = rows_of(rollouts, [0, 1], positions=1)
    packed = pack(rollouts, alone, CPU, causal=True)
    assert packed.mask is None
    assert packed.positions.equal(torch.arange(10).expand(6, -1))  # a position that begins anew would be a sequence
    policy = make_policy()
    found, _ = token_scores(policy, packed, 1.0)
    expected, _ = token_scores(policy, pack(rollouts, alone, CPU), 1.0)
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)
