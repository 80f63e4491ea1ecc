"""Advantages, weights and masks of each algorithm, against its paper's formula in float64; and how they are related."""

import math
import re
import statistics
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rl.algorithms import ALGORITHMS
from rl.algorithms.algorithm import Tokens
from rl.learning.algorithm_config import AlgorithmSpec
from rl.records import Batch, Problem, Rollouts
from tests.rl.algorithms.papers import PAPERS
from tests.rl.updates import judged

EIGHTHS = st.integers(0, 8).map(lambda eighths: eighths / 8)
GROUPS = st.lists(st.lists(EIGHTHS, min_size=4, max_size=4), min_size=1, max_size=4)
WITH_GAPS = st.lists(st.lists(st.none() | EIGHTHS, min_size=4, max_size=4), min_size=1, max_size=4)


def of(name: str, rewards: list[list[float]], **more: Any) -> NDArray[np.float32]:
    """[P, G] advantages, by an algorithm, of completions of one token."""
    found = AlgorithmSpec(name=name).algorithm.advantages(judged(np.float32(rewards), **more))
    return found[..., 0] if found.ndim == 3 else found


OF_REWARDS = {name: paper.advantages for name, paper in PAPERS.items() if paper.advantages is not None}


def test_every_algorithm_has_a_formula_here_and_its_source_in_its_docstring() -> None:
    without = sorted(ALGORITHMS.keys() - PAPERS.keys())
    assert without == [], f"add what the paper says of {', '.join(without)} to papers.py"
    assert ALGORITHMS.keys() == PAPERS.keys()
    for name, algorithm in ALGORITHMS.items():
        assert algorithm.summary
        said = sys.modules[algorithm.__module__].__doc__ or ""
        assert re.search(r"arXiv|\b(19|20)\d\d\b", said), f"{name}: name its source"


@pytest.mark.parametrize("name", OF_REWARDS)
@given(GROUPS)
def test_advantages_are_those_of_the_paper(name: str, rewards: list[list[float]]) -> None:
    everything = [reward for group in rewards for reward in group]
    if name == "reinforce_pp" and len(set(everything)) < 2:
        return
    expected = [OF_REWARDS[name](group, everything) for group in rewards]
    np.testing.assert_allclose(of(name, rewards), expected, atol=2e-4)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_REWARDS)
@given(WITH_GAPS)
def test_completions_without_a_verdict_have_no_advantage_and_are_in_no_baseline(
    name: str, rewards: list[list[float | None]]
) -> None:
    groups = [[reward for reward in group if reward is not None] for group in rewards]
    everything = [reward for group in groups for reward in group]
    if any(len(group) < 2 for group in groups) or len(set(everything)) < 2:
        return
    found = of(name, [[math.nan if reward is None else reward for reward in group] for group in rewards])
    for row, group, known in zip(found, rewards, groups, strict=True):
        expected = iter(OF_REWARDS[name](known, everything))
        np.testing.assert_allclose(row, [0.0 if reward is None else next(expected) for reward in group], atol=2e-4)


def test_remax_takes_the_reward_of_the_greedy_completion_off() -> None:
    found = of("remax", [[1, 0, math.nan], [1, 1, 0]], baseline=np.float32([0.5, math.nan]))
    assert found.tolist() == [[0.5, -0.5, 0.0], [0.0, 0.0, 0.0]]  # no baseline, nothing to learn


@given(GROUPS)
def test_rloo_is_reinforce_times_g_over_g_minus_one(rewards: list[list[float]]) -> None:
    np.testing.assert_allclose(of("rloo", rewards), of("reinforce", rewards) * 4 / 3, atol=1e-6)


@pytest.mark.parametrize("name", sorted(OF_REWARDS.keys() - {"reinforce_pp"}))
def test_groups_of_equal_rewards_teach_nothing(name: str) -> None:
    assert not of(name, [[1, 1, 1, 1], [0, 0, 0, 0]]).any()


@pytest.mark.parametrize("name", PAPERS)
def test_token_weights_are_those_of_the_paper(name: str) -> None:
    lengths, most = np.int32([[2, 0, 3], [1, 5, 5]]), 10
    algorithm = AlgorithmSpec(name=name).algorithm
    found, there = algorithm.token_weights(lengths, most), lengths > 0
    expected = {
        "token": np.full(lengths.shape, 1 / 16),
        "sequence": np.where(there, 1 / (5 * np.maximum(lengths, 1)), 0),
        "constant": np.full(lengths.shape, 1 / (5 * most)),
    }[over := PAPERS[name].weights]
    np.testing.assert_allclose(found, expected, rtol=1e-6)
    assert (found * lengths).sum() == pytest.approx(1 if over != "constant" else 16 / 50)


# -- what tokens are learned from


@given(st.lists(st.tuples(st.floats(-2, 2), st.floats(-2, 2)), min_size=1, max_size=40))
def test_m2po_leaves_out_the_fewest_tokens_that_bring_the_second_moment_to_its_bound(
    tokens: list[tuple[float, float]],
) -> None:
    ratios, advantages = np.float32(tokens).T
    kept = AlgorithmSpec(name="m2po").algorithm.token_mask(ratios, advantages)
    further = advantages * ratios > 0  # what is taken back towards the old policy does no harm
    assert kept[~further].all()
    squares = ratios.astype(np.float64) ** 2
    if (kept & further).any():
        assert squares[kept & further].mean() <= 0.04
    if not kept.all():
        assert squares[~kept].min() >= squares[kept & further].max(initial=0)
        with_one_more = np.append(squares[kept & further], squares[~kept].min())
        assert with_one_more.mean() > 0.04


def test_maxrl_is_bounded_where_penalties_make_the_mean_small() -> None:
    penalties = np.full((1, 4, 1), 0.24975, np.float32)
    found = of("maxrl", [[1, 0, 0, 0]], penalties=penalties)
    np.testing.assert_allclose(found, [[3, -1, -1, -1]], atol=1e-4)
    assert np.abs(of("maxrl", [[1, 0, 0, 0]])).max() == 3  # as without


@pytest.mark.parametrize("reward", [0.1, 0.7, 0.2, 1 / 3, -0.3])
def test_a_batch_of_equal_rewards_teaches_reinforce_pp_nothing(reward: float) -> None:
    assert np.abs(of("reinforce_pp", [[reward] * 8] * 31)).max() < 1e-6


def test_reinforce_pp_normalises_over_tokens_and_takes_off_what_is_still_to_be_paid() -> None:
    random = np.random.default_rng(3)
    lengths = [3, 1, 4, 2]
    penalties = random.normal(size=(2, 2, 4)).astype(np.float32)
    rollouts = Rollouts.padded([Problem("1", "1", "")] * 2, [[1]] * 2, [[2] * length for length in lengths])
    batch = Batch(rollouts, np.float32([[1, math.nan], [0, 0.5]]), ((("",) * 2),) * 2, penalties=penalties)
    found = AlgorithmSpec(name="reinforce_pp").algorithm.advantages(batch)
    to_go = {}
    for (index, reward), length in zip(np.ndenumerate(batch.rewards), lengths, strict=True):
        for t in range(0 if math.isnan(reward) else length):
            to_go[*index, t] = float(reward) - math.fsum(map(float, penalties[index][t:length]))
    mean, deviation = statistics.fmean(to_go.values()), statistics.pstdev(to_go.values())
    for index, advantage in np.ndenumerate(found):
        expected = (to_go[index] - mean) / deviation if index in to_go else 0
        assert advantage == pytest.approx(expected, abs=1e-5)


# -- PPO


def test_ppo_with_a_zero_critic_is_reinforce_without_a_baseline() -> None:
    rewards = np.float32([[1, 0, 0.5], [0, 1, math.nan]])
    rollouts = Rollouts.padded([Problem("1", "1", "t")] * 2, [[1], [2]], [[1, 2], [3], [4, 5, 6]] * 2)
    batch = Batch(rollouts, rewards, (("",) * 3,) * 2, values=np.zeros(rollouts.tokens.shape, np.float32))
    algorithm = AlgorithmSpec(name="ppo", gamma=1.0, lam=1.0, whiten=False).algorithm
    expected = np.where(rollouts.inside, np.nan_to_num(rewards)[..., None], 0)
    np.testing.assert_allclose(algorithm.advantages(batch), expected)
    pi = torch.tensor([-1.0, -2.0], requires_grad=True)
    tokens = Tokens(pi, pi.detach(), torch.tensor([1.0, 0.5]))
    gradients = [
        torch.autograd.grad(one.token_loss(tokens).value.sum(), pi)[0] for one in (algorithm, AlgorithmSpec().algorithm)
    ]
    assert torch.equal(*gradients)


def test_whitened_advantages_have_mean_zero_and_deviation_one_over_the_tokens() -> None:
    rollouts = Rollouts.padded([Problem("1", "1", "t")] * 2, [[1], [2]], [[1, 2], [3], [4, 5, 6]] * 2)
    values = np.random.default_rng(0).normal(size=rollouts.tokens.shape).astype(np.float32)
    batch = Batch(rollouts, np.float32([[1, 0, 0.5], [0, 1, math.nan]]), (("",) * 3,) * 2, values=values)
    found = AlgorithmSpec(name="ppo").algorithm.advantages(batch)
    learned = rollouts.inside & ~np.isnan(batch.rewards)[..., None]
    assert not found[~learned].any()
    assert (found[learned].mean(), found[learned].std()) == pytest.approx((0, 1), abs=1e-5)


# -- losses


RATIOS = st.lists(st.tuples(st.floats(-1.5, 1.5), st.floats(-2, 2)), min_size=1, max_size=8)


def gradient(name: str, gaps: list[float], advantages: list[float], **more: Any) -> tuple[list[float], list[float]]:
    """Values and gradients of the terms of tokens with these log-ratios."""
    pi = torch.full((len(gaps),), -2.0, dtype=torch.float64, requires_grad=True)
    old = pi.detach() - torch.tensor(gaps, dtype=torch.float64)
    tokens = Tokens(pi, old, torch.tensor(advantages, dtype=torch.float64), **more)
    value = AlgorithmSpec(name=name).algorithm.token_loss(tokens).value
    return value.tolist(), torch.autograd.grad(value.sum(), pi)[0].tolist()


@given(RATIOS)
def test_sapo_is_the_soft_gate_of_its_paper(tokens: list[tuple[float, float]]) -> None:
    values, gradients = gradient("sapo", [gap for gap, _ in tokens], [a for _, a in tokens])
    for (gap, a), value, slope in zip(tokens, values, gradients, strict=True):
        tau, ratio = (1.0 if a > 0 else 1.05), math.exp(gap)
        p = 1 / (1 + math.exp(-tau * (ratio - 1)))
        assert value == pytest.approx(-a * p * 4 / tau, rel=1e-9)
        assert slope == pytest.approx(-a * 4 * p * (1 - p) * ratio, rel=1e-9)  # equation 7


@given(RATIOS)
def test_cispo_is_reinforce_with_a_clipped_weight(tokens: list[tuple[float, float]]) -> None:
    gaps, advantages = [2 * gap for gap, _ in tokens], [a for _, a in tokens]
    _, gradients = gradient("cispo", gaps, advantages)
    expected = [-a * min(math.exp(gap), 5.0) for gap, a in zip(gaps, advantages, strict=True)]
    np.testing.assert_allclose(gradients, expected, rtol=1e-9)
    on_policy = [0.0] * len(gaps)
    assert gradient("cispo", on_policy, advantages) == gradient("reinforce", on_policy, advantages)


@given(RATIOS)
def test_gspo_of_completions_of_one_token_is_ppo(tokens: list[tuple[float, float]]) -> None:
    gaps, advantages = [gap / 1000 for gap, _ in tokens], [a for _, a in tokens]
    clip = {"clip_low": 0.2, "clip_high": 0.2}
    pi = torch.full((len(gaps),), -2.0, dtype=torch.float64, requires_grad=True)
    of_gap = torch.tensor(gaps, dtype=torch.float64)
    given_ = Tokens(pi, pi.detach() - of_gap, torch.tensor(advantages, dtype=torch.float64), of_gap)
    found = [
        torch.autograd.grad(AlgorithmSpec(**spec).algorithm.token_loss(given_).value.sum(), pi)[0]  # type: ignore[arg-type]
        for spec in ({"name": "gspo", **clip}, {"name": "ppo"})
    ]
    torch.testing.assert_close(*found)


@pytest.mark.parametrize("name", sorted(ALGORITHMS))
def test_no_advantage_no_gradient(name: str) -> None:
    _, gradients = gradient(name, [0.3, -0.3], [0.0, 0.0], sequence_log_ratio=torch.zeros(2, dtype=torch.float64))
    assert not any(gradients)


@pytest.mark.parametrize("name", PAPERS)
def test_the_gradient_is_that_of_finite_differences_where_it_is_smooth(name: str) -> None:
    algorithm = AlgorithmSpec(name=name).algorithm
    old = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64)
    pi = (old + torch.tensor([0.05, -0.05, 0.01], dtype=torch.float64)).requires_grad_()
    advantage = torch.tensor([1.0, -0.5, 0.25], dtype=torch.float64)
    if PAPERS[name].weighted:
        found = torch.autograd.grad(algorithm.token_loss(Tokens(pi, old, advantage, pi.detach() - old)).value.sum(), pi)
        ratio = (pi.detach() - old).exp()
        expected = -advantage * (
            ratio if name != "gspo" else torch.tensor([0.0, 0.0, ratio[2] if ratio[2] < 1.0004 else 0])
        )
        torch.testing.assert_close(found[0], expected)
        return
    assert torch.autograd.gradcheck(lambda at: algorithm.token_loss(Tokens(at, old, advantage)).value, pi)


def test_truncated_weights_without_a_bound_are_unbiased_on_a_problem_that_is_computed_exactly() -> None:
    """Three actions: sum over mu of mu(a) * weight * A * grad log pi is the policy gradient where nothing is cut."""
    logits = torch.tensor([0.3, -0.2, 0.1], dtype=torch.float64, requires_grad=True)
    pi, mu = logits.log_softmax(-1), torch.tensor([0.2, 0.5, 0.3], dtype=torch.float64).log()
    rewards = torch.tensor([1.0, 0.0, 0.5], dtype=torch.float64)
    for cap, unbiased in ((1e9, True), (1.01, False)):
        algorithm = AlgorithmSpec(ratio_cap=cap).algorithm
        loss = (mu.exp() * algorithm.token_loss(Tokens(pi, mu, rewards)).value).sum()
        (found,) = torch.autograd.grad(loss, logits, retain_graph=True)
        (exact,) = torch.autograd.grad(-(pi.exp() * rewards).sum(), logits, retain_graph=True)
        assert torch.allclose(found, exact) == unbiased
