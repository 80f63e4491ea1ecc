from collections.abc import Callable
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from rl.records import Batch, Problem, Rollouts, concatenate

Make = Callable[..., Rollouts]
Judged = Callable[..., Batch]


@pytest.fixture
def batch(make_rollouts: Make, judged: Judged) -> Batch:
    completions = [[[5, 6], [7]], [[8], [9]], [[10, 11, 12], [13]]]
    return judged(make_rollouts([[1], [2, 3], [4]], completions), [[0, 1], [1, 1], [0.5, 0.25]])


def test_a_group_varies_when_its_rewards_differ(batch: Batch) -> None:
    assert batch.with_signal.tolist() == [True, False, True]
    assert len(batch) == 3


def test_a_group_varies_by_the_rewards_that_are_known(make_rollouts: Make, judged: Judged) -> None:
    nan = float("nan")
    rewards = [[1, nan, 0], [1, nan, nan], [nan, nan, nan], [0, 0, nan], [nan, 0.5, 1]]
    found = judged(make_rollouts([[1]] * 5, [[[2], [3], [4]]] * 5), rewards)
    assert found.with_signal.tolist() == [True, False, False, False, True]


def test_groups_of_one_never_vary(make_rollouts: Make, judged: Judged) -> None:
    assert judged(make_rollouts([[1], [2]], [[[3]], [[4]]]), [[1], [0]]).with_signal.tolist() == [False, False]


def test_generated_tokens_counts_no_padding(batch: Batch) -> None:
    assert batch.rollouts.generated_tokens == 9


def test_select_takes_groups_in_the_order_given(batch: Batch) -> None:
    chosen = batch.select([2, 0])
    assert [problem.prompt for problem in chosen.rollouts.problems] == ["2", "0"]
    assert [prompt.tolist() for prompt in chosen.rollouts.prompts] == [[4], [1]]
    assert chosen.rollouts.tokens.tolist() == [[[10, 11, 12], [13, 0, 0]], [[5, 6, 0], [7, 0, 0]]]
    assert chosen.rollouts.lengths.tolist() == [[3, 1], [2, 1]]
    assert chosen.rewards.tolist() == [[0.5, 0.25], [0, 1]]
    assert chosen.reasons == (("right", "right"), ("wrong_value", "right"))


def test_selecting_and_concatenating_again_gives_the_same_batch(batch: Batch) -> None:
    whole = concatenate([batch.select([0]), batch.select([1, 2])])
    for name in ("tokens", "logprobs", "versions", "lengths", "ended"):
        before, after = getattr(batch.rollouts, name), getattr(whole.rollouts, name)
        assert np.array_equal(before, after)
        assert before.dtype == after.dtype
    assert whole.rollouts.problems == batch.rollouts.problems
    assert np.array_equal(whole.rewards, batch.rewards)
    assert whole.reasons == batch.reasons


def test_concatenating_grows_the_token_axis_to_the_longest(make_rollouts: Make, judged: Judged) -> None:
    short = judged(make_rollouts([[1]], [[[2], [3]]]), [[0, 1]])
    long = judged(make_rollouts([[1]], [[[4, 5, 6], [7]]]), [[1, 0]])
    whole = concatenate([short, long])
    assert whole.rollouts.tokens.tolist() == [[[2, 0, 0], [3, 0, 0]], [[4, 5, 6], [7, 0, 0]]]
    assert whole.rollouts.logprobs.shape == whole.rollouts.versions.shape == (2, 2, 3)


def test_concatenating_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no batch"):
        concatenate([])


def test_records_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Problem("1", "1", "test").prompt = "2"  # type: ignore[misc]
