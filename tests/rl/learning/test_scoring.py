"""Log-probs of completions under a policy that is not trained, against a forward pass of each sequence alone."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rl.learning import scoring
from rl.learning.passes import Passes
from rl.learning.scoring import Scoring
from rl.loading.parity import UnknownModelError, require_parity
from rl.model.memory import NoRoomError
from rl.model.policy import Policy
from rl.records import Rollouts, concatenate
from tests.bench.architectures import Architecture, build
from tests.rl.architectures import each_of
from tests.rl.learning.test_packing import GROUPS, Make, filled
from tests.rl.updates import Judged

MIXED = [(2, [3, 1, 5]), (6, [2, 4, 3]), (1, [1, 7, 2])]


def within(rollouts: Rollouts, vocabulary: int) -> Rollouts:
    """The same with token ids below that."""
    prompts = tuple(prompt % vocabulary for prompt in rollouts.prompts)
    return replace(rollouts, prompts=prompts, tokens=rollouts.tokens % vocabulary)


def one_by_one(
    model: PreTrainedModel, alone: Callable[..., Tensor], rollouts: Rollouts, temperature: float
) -> NDArray[np.float64]:
    """[P, G, T]."""
    found = np.zeros(rollouts.tokens.shape)
    with torch.no_grad():
        for (p, g), length in np.ndenumerate(rollouts.lengths):
            completion = rollouts.tokens[p, g, :length]
            found[p, g, :length] = alone(model, rollouts.prompts[p], completion, temperature)
    return found


@each_of()
def test_log_probs_are_those_of_a_plain_forward_pass(
    architecture: Architecture, tokenizer: PreTrainedTokenizerBase, make_rollouts: Make, alone: Callable[..., Tensor]
) -> None:
    policy = Policy(build(architecture, len(tokenizer)), tokenizer, torch.device("cpu"), torch.float32)
    try:
        require_parity(policy, architecture.name)
    except UnknownModelError:
        return  # nothing is trained towards it
    rollouts = within(filled(make_rollouts, MIXED), len(tokenizer))
    found = Scoring(policy).logprobs(rollouts, 0.7)
    assert np.abs(found - one_by_one(policy.model, alone, rollouts, 0.7)).max() < 2e-5
    assert found.dtype == np.float32


@pytest.mark.parametrize("name", ["qwen3", "llama", "gpt2", "gemma2"])
@pytest.mark.parametrize("temperature", [0.5, 1.0])
def test_log_probs_are_those_of_float64_and_nothing_is_left_to_train(
    name: str,
    temperature: float,
    make_policy: Callable[..., Policy],
    make_rollouts: Make,
    exactly: Callable[[PreTrainedModel], PreTrainedModel],
    alone: Callable[..., Tensor],
) -> None:
    policy = make_policy(name)
    rollouts = within(filled(make_rollouts, MIXED), policy.text.vocab_size)
    found = Scoring(policy).logprobs(rollouts, temperature)
    there = np.arange(found.shape[2]) < rollouts.lengths[..., None]
    assert not found[~there].any()
    assert (found[there] < 0).all()
    assert np.abs(found - one_by_one(exactly(policy.model), alone, rollouts, temperature)).max() < 2e-5
    assert all(parameter.grad is None for parameter in policy.model.parameters())


def test_in_bfloat16_they_are_those_of_float32_as_far_as_that_goes(
    make_policy: Callable[..., Policy], make_rollouts: Make
) -> None:
    policy = make_policy()
    rollouts = within(filled(make_rollouts, MIXED), policy.text.vocab_size)
    wide = Scoring(policy).logprobs(rollouts, 1.0)
    narrow = Scoring(replace(policy, dtype=torch.bfloat16)).logprobs(rollouts, 1.0)
    assert 0 < np.abs(wide - narrow).max() < 0.15


@pytest.mark.slow
@given(groups=GROUPS, positions=st.integers(1, 60))
def test_they_do_not_depend_on_how_rows_are_packed(
    make_policy: Callable[..., Policy],
    make_rollouts: Make,
    judged: Judged,
    groups: list[tuple[int, list[int]]],
    positions: int,
) -> None:
    policy = make_policy()
    rollouts = within(filled(make_rollouts, groups), policy.text.vocab_size)
    whole, short = Scoring(policy), Scoring(policy)
    short.accumulation.passes = Passes(positions, checkpointing=True)
    found = whole.logprobs(rollouts, 1.0)
    assert np.abs(found - short.logprobs(rollouts, 1.0)).max() < 1e-5
    batch = judged(rollouts, [[0.0] * 3] * len(groups))
    parts = [batch.select([index]).rollouts for index in reversed(range(len(groups)))]
    each = [replace(judged(part, [[0.0] * 3]), reference_logprobs=whole.logprobs(part, 1.0)) for part in parts]
    joined = concatenate(each[::-1]).reference_logprobs
    assert joined is not None
    assert np.abs(found - joined).max() < 1e-5


def test_what_was_scored_before_changes_no_bit(make_policy: Callable[..., Policy], make_rollouts: Make) -> None:
    policy = make_policy()
    few, many = (
        within(filled(make_rollouts, groups), policy.text.vocab_size) for groups in (MIXED, [(5, [30, 9, 20])] * 6)
    )
    used, fresh = Scoring(policy), Scoring(policy)
    used.logprobs(many, 1.0)
    assert used.logprobs(few, 1.0).tobytes() == fresh.logprobs(few, 1.0).tobytes()


def test_only_prompts_tokens_and_lengths_are_read(make_policy: Callable[..., Policy], make_rollouts: Make) -> None:
    policy = make_policy()
    rollouts = within(filled(make_rollouts, MIXED), policy.text.vocab_size)
    none = rollouts.logprobs[..., :0]
    bare = replace(rollouts, problems=(), texts=(), logprobs=none, versions=none.astype(np.int32))
    found = Scoring(policy).logprobs(bare, 1.0)
    assert found.tobytes() == Scoring(policy).logprobs(rollouts, 1.0).tobytes()


def test_out_of_memory_passes_get_shorter_until_none_can(
    make_policy: Callable[..., Policy], make_rollouts: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_policy()
    rollouts = within(filled(make_rollouts, [(4, [6, 5, 6])] * 8), policy.text.vocab_size)
    expected = Scoring(policy).logprobs(rollouts, 1.0)
    scores, most = scoring.token_scores, 0

    def limited(policy: Policy, packed: scoring.Packed, temperature: float) -> tuple[Tensor, Tensor]:
        if packed.tokens.numel() > most:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return scores(policy, packed, temperature)

    monkeypatch.setattr(scoring, "token_scores", limited)
    most = 30
    assert np.abs(Scoring(policy).logprobs(rollouts, 1.0) - expected).max() < 1e-5
    most = 9
    with pytest.raises(NoRoomError, match="one sequence of 10 tokens"):
        Scoring(policy).logprobs(rollouts, 1.0)
