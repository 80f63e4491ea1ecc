"""The token that a uniform number chooses."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl.sampling.decoding import choose, never_zero

LARGEST_UNIFORM = 1 - 2**-24
INFINITY = float("inf")
SCORES = st.lists(st.just(-INFINITY) | st.floats(-200, 50, width=32), min_size=1, max_size=40)
UNIFORM = st.sampled_from([0.0, 2**-24, 0.5, LARGEST_UNIFORM]) | st.floats(0, LARGEST_UNIFORM, width=32)


@given(SCORES.filter(lambda scores: max(scores) > -INFINITY), UNIFORM)
def test_no_token_of_probability_zero_is_ever_chosen(scores: list[float], uniform: float) -> None:
    logprobs = torch.tensor([scores]).log_softmax(-1)
    token = int(choose(logprobs.exp(), torch.tensor([uniform])))
    assert logprobs[0, token].exp() > 0


@pytest.mark.parametrize("uniform", [0.0, 0.3, LARGEST_UNIFORM])
def test_trailing_and_leading_tokens_of_probability_zero_are_passed_over(uniform: float) -> None:
    # many equal shares: their float32 sum is not exactly 1
    logprobs = torch.cat([torch.full((50,), -INFINITY), torch.zeros(70_001), torch.full((50,), -INFINITY)])
    token = int(choose(logprobs.softmax(-1)[None], torch.tensor([uniform])))
    assert 50 <= token < 70_051


def test_the_chosen_token_is_where_the_cumulative_distribution_passes_the_uniform_number() -> None:
    weights = torch.tensor([0.5, 1.0, 0.0, 0.5]).repeat(6, 1)
    uniform = torch.tensor([0.0, 0.249, 0.25, 0.749, 0.75, LARGEST_UNIFORM])
    assert choose(weights, uniform).tolist() == [0, 0, 1, 1, 3, 3]


@given(SCORES.filter(lambda scores: max(scores) > -INFINITY), st.integers(0, 39))
def test_a_choice_by_sums_that_rounding_disordered_is_no_token_of_probability_zero(
    scores: list[float], disordered: int
) -> None:
    logprobs = torch.tensor([scores]).log_softmax(-1)
    chosen = torch.tensor([disordered % len(scores)])
    token = never_zero(logprobs.exp(), chosen)
    assert logprobs[0, token].exp() > 0
    if logprobs[0, chosen].exp() > 0:
        assert token == chosen  # no other draw is changed
