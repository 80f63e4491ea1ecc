"""Advantages from values, against the definition: a sum over all later tokens, one completion at a time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from rl.algorithms.gae import gae

Drawn = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_]]


def drawn(seed: int, groups: int = 3, samples: int = 4, tokens: int = 7) -> Drawn:
    """Rewards, values that are there past a completion's length too, and the tokens of lengths from 0 on."""
    random = np.random.default_rng(seed)
    lengths = random.integers(0, tokens + 1, (groups, samples))
    values = random.normal(size=(groups, samples, tokens)).astype(np.float32)
    trained = np.arange(tokens) < lengths[..., None]
    return random.normal(size=(groups, samples)).astype(np.float32), values, trained


def by_definition(reward: float, values: list[float], penalties: list[float], gamma: float, lam: float) -> list[float]:
    """A_t = sum_l (gamma lam)^l delta_{t+l} (equation 16)."""
    rewards = [-penalty for penalty in penalties]
    if rewards:
        rewards[-1] += reward
    after = [*values[1:], 0.0]
    deltas = [rewards[t] + gamma * after[t] - values[t] for t in range(len(values))]
    return [sum((gamma * lam) ** (u - t) * deltas[u] for u in range(t, len(deltas))) for t in range(len(deltas))]


@pytest.mark.parametrize("turns", [False, True])
@given(st.integers(0, 2**32 - 1), st.floats(0, 1), st.floats(0, 1))
def test_it_is_the_sum_of_all_later_errors(turns: bool, seed: int, gamma: float, lam: float) -> None:
    rewards, values, trained = drawn(seed)
    random = np.random.default_rng(seed)
    penalties = random.normal(size=values.shape).astype(np.float32)
    if turns:  # observations anywhere: what is between two tokens of the policy's is one step
        trained &= random.random(trained.shape) < 0.6
    found = gae(rewards, values, trained, gamma, lam, penalties)
    assert found.dtype == np.float32
    for index in np.ndindex(rewards.shape):
        mine = trained[index]
        of = values[index][mine].tolist(), penalties[index][mine].tolist()
        expected = by_definition(float(rewards[index]), *of, gamma, lam)
        np.testing.assert_allclose(found[index][mine], expected, rtol=1e-6, atol=1e-5)
        assert not found[index][~mine].any()


@pytest.mark.parametrize("gamma", [1.0, 0.9])
def test_with_lambda_1_it_is_the_discounted_reward_less_the_value(gamma: float) -> None:
    rewards, values, trained = drawn(1)
    left = np.maximum(trained.sum(axis=2, keepdims=True) - 1 - np.arange(values.shape[2]), 0)  # tokens until the reward
    expected = np.where(trained, gamma**left * rewards[..., None] - values, 0)
    np.testing.assert_allclose(gae(rewards, values, trained, gamma, 1.0), expected, rtol=1e-5, atol=1e-6)


def test_with_lambda_0_it_is_the_error_of_one_step() -> None:
    rewards, values = np.float32([[2.0]]), np.float32([[[0.5, 1.0, 4.0, 9.0]]])
    found = gae(rewards, values, np.array([[[True, True, True, False]]]), 0.5, 0.0)
    np.testing.assert_allclose(found, [[[0.5 * 1.0 - 0.5, 0.5 * 4.0 - 1.0, 2.0 - 4.0, 0.0]]])


def test_a_turn_more_is_one_step_more_however_long_its_observation_is() -> None:
    """Two turns of one token: V of the second one's state is taken where it begins, behind the observation."""
    for observed in (1, 4):
        trained = np.array([[[True, *[False] * observed, True]]])
        values = np.where(trained, np.float32([0.5]), np.float32(9.0)).astype(np.float32)
        values[0, 0, -1] = 2.0
        found = gae(np.float32([[1.0]]), values, trained, 0.9, 0.5)
        last = 1.0 - 2.0
        expected = [0.9 * 2.0 - 0.5 + 0.9 * 0.5 * last, *[0.0] * observed, last]
        np.testing.assert_allclose(found[0, 0], expected, rtol=1e-6)


def test_without_values_every_token_has_the_reward() -> None:
    rewards, values, trained = drawn(2)
    found = gae(rewards, 0 * values, trained, 1.0, 1.0)
    np.testing.assert_array_equal(found, np.where(trained, rewards[..., None], 0))


def test_an_unknown_reward_has_no_advantage_and_changes_no_other() -> None:
    rewards, values, trained = drawn(3)
    before = gae(rewards, values, trained, 0.9, 0.9)
    rewards[1, 2] = np.nan
    after = gae(rewards, values, trained, 0.9, 0.9)
    assert not after[1, 2].any()
    after[1, 2] = before[1, 2]
    np.testing.assert_array_equal(after, before)
