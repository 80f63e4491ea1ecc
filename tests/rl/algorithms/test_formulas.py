import math
import pickle
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from rl.algorithms.algorithm import Tokens
from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.shaping import overlong_penalty
from tests.rl.updates import judged

REWARDS = st.lists(st.lists(st.floats(0, 1, width=32), min_size=4, max_size=4), min_size=1, max_size=5)
CLIP = AlgorithmSpec(name="grpo", clip=0.2)
CAP = AlgorithmSpec(ratio_cap=2.0)


def advantages(rewards: NDArray[np.float32], name: str) -> NDArray[np.float32]:
    return AlgorithmSpec(name=name).algorithm.advantages(judged(rewards))


def token_weights(lengths: NDArray[np.int32], name: str) -> NDArray[np.float32]:
    return AlgorithmSpec(name=name).algorithm.token_weights(lengths, 50)


def differentiated(logprobs: list[float], behaviour: list[float], advantage: list[float], config: AlgorithmSpec):  # type: ignore[no-untyped-def]
    """Values, gradients with respect to the log-probs, and which were clipped."""
    pi = torch.tensor(logprobs, dtype=torch.float32, requires_grad=True)
    terms = config.algorithm.token_loss(Tokens(pi, torch.tensor(behaviour), torch.tensor(advantage)))
    terms.value.sum().backward()
    assert pi.grad is not None
    return terms.value.tolist(), pi.grad.tolist(), terms.metrics["clip_fraction"].tolist()


@given(REWARDS)
def test_reinforce_takes_the_groups_mean_off(rewards: list[list[float]]) -> None:
    expected = [[reward - math.fsum(group) / 4 for reward in group] for group in rewards]
    np.testing.assert_allclose(advantages(np.float32(rewards), "reinforce"), expected, atol=1e-6)


@given(REWARDS)
def test_grpo_divides_by_the_sample_deviation_too(rewards: list[list[float]]) -> None:
    expected = [
        [(reward - math.fsum(group) / 4) / (statistics.stdev(group) + 1e-6) for reward in group] for group in rewards
    ]
    # below a spread of 0.001 float32 rewards themselves have too few digits
    if all(statistics.stdev(group) > 1e-3 for group in rewards):
        np.testing.assert_allclose(advantages(np.float32(rewards), "grpo"), expected, atol=2e-3)


PARTLY_KNOWN = st.lists(
    st.lists(st.one_of(st.none(), st.integers(0, 8).map(lambda eighths: eighths / 8)), min_size=5, max_size=5),
    min_size=1,
    max_size=5,
)


@given(PARTLY_KNOWN, st.sampled_from(["reinforce", "grpo"]))
def test_the_baseline_is_that_of_the_verdicts_that_are_there(rewards: list[list[float | None]], name: str) -> None:
    expected = []  # in float64
    for group in rewards:
        known = [reward for reward in group if reward is not None]
        mean = math.fsum(known) / len(known) if known else 0.0
        scale = statistics.stdev(known) + 1e-6 if name == "grpo" and len(known) > 1 else 1.0
        expected.append([0.0 if reward is None else (reward - mean) / scale for reward in group])
    given_ = np.float32([[math.nan if reward is None else reward for reward in group] for group in rewards])
    found = advantages(given_, name)
    assert found.dtype == np.float32
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("name", ["reinforce", "grpo"])
def test_a_completion_of_no_length_counts_nowhere(name: str) -> None:
    found = token_weights(np.int32([[2, 0, 3], [0, 0, 5]]), name)
    assert found[0, 0] * 2 + found[0, 2] * 3 + found[1, 2] * 5 == pytest.approx(1)
    if name == "grpo":
        np.testing.assert_allclose(found, [[1 / 6, 0, 1 / 9], [0, 0, 1 / 15]], rtol=1e-6)


@pytest.mark.parametrize("name", ["reinforce", "grpo"])
def test_a_group_of_equal_rewards_has_no_advantage(name: str) -> None:
    found = advantages(np.float32([[1, 1, 1], [0, 0, 0]]), name)
    assert found.dtype == np.float32
    assert not found.any()


@pytest.mark.parametrize(("name", "expected"), [("reinforce", [0.75, -0.25]), ("grpo", [1.5, -0.5])])
def test_advantages_by_hand(name: str, expected: list[float]) -> None:
    high, low = expected
    found = advantages(np.float32([[1, 0, 0, 0]]), name)
    np.testing.assert_allclose(found, [[high, low, low, low]], atol=1e-5)


@given(st.lists(st.lists(st.integers(1, 40), min_size=3, max_size=3), min_size=1, max_size=5))
def test_token_weights_sum_to_one_over_all_tokens(lengths: list[list[int]]) -> None:
    of = np.int32(lengths)
    for name in ("reinforce", "grpo"):
        assert (token_weights(of, name) * of).sum() == pytest.approx(1.0, abs=1e-5)
    assert len(set(token_weights(of, "reinforce").ravel().tolist())) == 1  # every token alike
    np.testing.assert_allclose((token_weights(of, "grpo") * of), 1 / of.size, rtol=1e-5)  # every completion alike


def test_completions_without_tokens_take_no_part_in_the_weights() -> None:
    of = np.int32([[4, 0], [2, 3]])
    assert token_weights(of, "reinforce").tolist() == np.full((2, 2), 1 / 9, dtype=np.float32).tolist()
    np.testing.assert_allclose(token_weights(of, "grpo"), [[1 / 12, 0], [1 / 6, 1 / 9]], rtol=1e-6)


def test_the_overlong_penalty_falls_in_a_line_over_the_last_tokens() -> None:
    # DAPO: L_max 20, L_cache 8
    penalty = overlong_penalty(np.int32([[1, 12, 14], [18, 20, 25]]), 20, 8)
    np.testing.assert_allclose(penalty, [[0, 0, -0.25], [-0.75, -1, -1]])


# -- gradients against independent ones

TOKENS = st.lists(
    st.tuples(st.floats(-8, -0.05), st.floats(-1.5, 1.5), st.floats(-2, 2).filter(lambda a: abs(a) > 1e-3)),
    min_size=1,
    max_size=12,
)


@given(TOKENS)
def test_reinforce_is_the_policy_gradient_times_the_capped_weight(tokens: list[tuple[float, float, float]]) -> None:
    behaviour = [pi - gap for pi, gap, _ in tokens]
    values, gradients, clipped = differentiated([pi for pi, _, _ in tokens], behaviour, [a for _, _, a in tokens], CAP)
    for (pi, gap, a), value, gradient, cut in zip(tokens, values, gradients, clipped, strict=True):
        logprob = torch.tensor(pi, dtype=torch.float64, requires_grad=True)
        weight = min(math.exp(gap), 2.0)
        (-a * weight * logprob).backward()
        assert gradient == pytest.approx(float(logprob.grad), rel=1e-4)  # type: ignore[arg-type]
        assert value == pytest.approx(-a * weight * pi, rel=1e-4)
        if abs(gap - math.log(2)) > 1e-4:
            assert cut == (gap > math.log(2))


def surrogate(pi: Tensor, mu: float, a: float, clip: float) -> Tensor:
    """PPO's clipped objective by cases, negated: past the clip in the advantage's direction it is a constant, and so it
    is past 3 against a negative one."""
    ratio = torch.exp(pi - mu)
    if a < 0 and float(ratio.detach()) > 3:
        return torch.tensor(-3 * a, dtype=torch.float64) + 0 * pi
    if a > 0 and float(ratio.detach()) > 1 + clip:
        return torch.tensor(-(1 + clip) * a, dtype=torch.float64) + 0 * pi
    if a < 0 and float(ratio.detach()) < 1 - clip:
        return torch.tensor(-(1 - clip) * a, dtype=torch.float64) + 0 * pi
    return -ratio * a


@given(TOKENS)
def test_grpo_is_the_clipped_surrogate(tokens: list[tuple[float, float, float]]) -> None:
    tokens = [t for t in tokens if min(abs(t[1] - math.log(edge)) for edge in (0.8, 1.2, 3)) > 1e-4]
    behaviour = [pi - gap for pi, gap, _ in tokens]
    values, gradients, clipped = differentiated([pi for pi, _, _ in tokens], behaviour, [a for _, _, a in tokens], CLIP)
    for (pi, gap, a), value, gradient, cut in zip(tokens, values, gradients, clipped, strict=True):
        logprob = torch.tensor(pi, dtype=torch.float64, requires_grad=True)
        expected = surrogate(logprob, pi - gap, a, 0.2)
        expected.backward()
        assert value == pytest.approx(float(expected.detach()), rel=1e-4)
        assert gradient == pytest.approx(float(logprob.grad), rel=1e-4)  # type: ignore[arg-type]
        assert cut == (float(logprob.grad) == 0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "clipped"),
    [
        (1.5, 1.0, -1.2, True),
        (1.5, -1.0, 1.5, False),
        (0.5, 1.0, -0.5, False),
        (0.5, -1.0, 0.8, True),
        (1.1, 1.0, -1.1, False),
        (0.9, -1.0, 0.9, False),
        (2.9, -1.0, 2.9, False),
        (50.0, -1.0, 3.0, True),  # dual clip
    ],
)
def test_grpo_clips_only_in_the_direction_of_the_advantage(
    ratio: float, advantage: float, value: float, clipped: bool
) -> None:
    values, gradients, cut = differentiated([math.log(ratio) - 1], [-1.0], [advantage], CLIP)
    assert values == pytest.approx([value], rel=1e-5)
    assert cut == [clipped]
    assert (gradients == [0.0]) == clipped


def test_on_policy_the_ratio_is_one_and_both_have_the_same_gradient() -> None:
    logprobs, advantage = [-0.1, -2.0, -7.0], [0.5, -1.0, 2.0]
    values, first, clipped = differentiated(logprobs, logprobs, advantage, CAP)
    assert values == pytest.approx([-a * pi for a, pi in zip(advantage, logprobs, strict=True)])
    ratios, second, cut = differentiated(logprobs, logprobs, advantage, CLIP)
    assert ratios == [-a for a in advantage]
    assert first == second == [-a for a in advantage]
    assert not any(clipped + cut)


@pytest.mark.parametrize("advantage", [-1.0, 1.0])
def test_a_token_that_was_as_good_as_impossible_where_it_was_sampled_spoils_no_update(advantage: float) -> None:
    (value,), gradients, _ = differentiated([-0.1], [-1000.0], [advantage], CLIP)
    assert value == pytest.approx(3.0 if advantage < 0 else -1.2)
    assert gradients == [0.0]


def test_no_gradient_passes_through_the_importance_weight_or_the_clip_mark() -> None:
    pi = torch.tensor([-1.0, -2.0], requires_grad=True)
    tokens = Tokens(pi, torch.tensor([-1.5, -0.5]), torch.ones(2))
    assert CAP.algorithm.token_loss(tokens).value.grad_fn is not None
    for config in (CLIP, CAP):
        assert not config.algorithm.token_loss(tokens).metrics["clip_fraction"].requires_grad


def test_an_algorithm_takes_its_own_options_of_the_losses() -> None:
    given = AlgorithmSpec(name="grpo", clip=0.1, dual_clip=5.0)
    assert given.algorithm.model_dump() == {"clip": 0.1, "dual_clip": 5.0}
    assert AlgorithmSpec(ratio_cap=7.0).algorithm.model_dump() == {"ratio_cap": 7.0}
    assert AlgorithmSpec(name="remax").algorithm.model_dump() == {"ratio_cap": 5.0}
    assert AlgorithmSpec(name="remax", ratio_cap=2.0).algorithm.model_dump() == {"ratio_cap": 2.0}
    for cap in (2.0, 5.0, 7.0):
        with pytest.raises(ValueError, match=r"ratio_cap: is no option of grpo, but of .*reinforce"):
            AlgorithmSpec(name="grpo", ratio_cap=cap)
    assert pickle.loads(pickle.dumps(given)) == given


def test_a_loss_that_is_not_there_is_not_silently_another() -> None:
    with pytest.raises(ValueError, match=r"is none of .*; did you mean rloo\?"):
        AlgorithmSpec(name="rlooo")
