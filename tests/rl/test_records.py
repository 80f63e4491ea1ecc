from collections.abc import Callable
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest

from rl.records import Batch, Problem, Rollouts, arrays, concatenate

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
    for name in arrays(Rollouts):
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


def test_what_some_have_and_others_lack_is_refused(batch: Batch) -> None:
    made = batch.select([0]).rollouts.made_by("g0")
    for other in (replace(batch.select([0]), rollouts=made), replace(batch.select([0]), baseline=np.zeros(1))):
        with pytest.raises(ValueError, match=r"^(makers|baseline): some of what is joined has it, and some has not$"):
            concatenate([other, batch.select([1, 2])])
        with pytest.raises(ValueError, match="some has not"):
            concatenate([batch.select([1, 2]), other])


def test_concatenating_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no batch"):
        concatenate([])


def test_rollouts_are_padded_with_zeros() -> None:
    problems = [Problem("1", "1", "test"), Problem("2", "2", "test")]
    completions = [[5], [6, 7, 8], [9, 10], [11]]
    found = Rollouts.padded(
        problems,
        [[1], [2, 3]],
        completions,
        logprobs=[[-0.5] * len(tokens) for tokens in completions],
        version=4,
        ended=[True, False, True, True],
        texts=["a", "b", "c", "d"],
        seconds=0.25,
    )
    assert (found.problems, found.seconds) == (tuple(problems), 0.25)
    assert [prompt.tolist() for prompt in found.prompts] == [[1], [2, 3]]
    assert found.tokens.tolist() == [[[5, 0, 0], [6, 7, 8]], [[9, 10, 0], [11, 0, 0]]]
    assert found.logprobs.tolist() == [[[-0.5, 0, 0], [-0.5] * 3], [[-0.5, -0.5, 0], [-0.5, 0, 0]]]
    assert found.versions.tolist() == [[[4, 0, 0], [4, 4, 4]], [[4, 4, 0], [4, 0, 0]]]
    assert found.trained.tolist() == [[[True, False, False], [True] * 3], [[True, True, False], [True, False, False]]]
    assert found.lengths.tolist() == [[1, 3], [2, 1]]
    assert found.ended.tolist() == [[True, False], [True, True]]
    assert found.texts == (("a", "b"), ("c", "d"))
    for name, (_, kinds) in arrays(Rollouts).items():
        array = getattr(found, name)
        assert array.dtype.kind in kinds
        assert array.dtype.itemsize in (1, 4)


def test_of_several_turns_what_the_policy_wrote_is_known_and_counted() -> None:
    problems = [Problem("1", "1", "test"), Problem("2", "2", "test")]
    flags = [[True], [True, False, True], [False, True], [True]]
    found = Rollouts.padded(problems, [[1], [2]], [[5], [6, 7, 8], [9, 10], [11]], trained=flags)
    assert found.trained.tolist() == [
        [[True, False, False], [True, False, True]],
        [[False, True, False], [True, False, False]],
    ]
    assert found.lengths.tolist() == [[1, 3], [2, 1]]
    assert found.trained_lengths.tolist() == [[1, 2], [1, 1]]
    assert found.trained_lengths.dtype == np.int32
    assert found.generated_tokens == 5
    kept = found.only(np.array([[False, True], [True, False]]))
    assert kept.lengths.tolist() == [[0, 3], [2, 0]]
    assert kept.trained_lengths.tolist() == [[0, 2], [1, 0]]
    assert (kept.lengths.dtype, kept.trained.dtype) == (np.int32, np.bool_)


def test_rollouts_without_logprobs_and_texts() -> None:
    found = Rollouts.padded([Problem("1", "1", "test")], [[1]], [[5], [6, 7]], ended=False)
    assert not found.logprobs.any()
    assert found.logprobs.shape == (1, 2, 2)
    assert found.texts == (("", ""),)
    assert not found.ended.any()
    assert found.prompts[0].dtype == np.int32


def test_records_are_frozen() -> None:
    with pytest.raises(FrozenInstanceError):
        Problem("1", "1", "test").prompt = "2"  # type: ignore[misc]
