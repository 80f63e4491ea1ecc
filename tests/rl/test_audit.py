"""What a second opinion on log-probs says: computed once more in plain Python, and measured on the tiny policy."""

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from rl.audit import AuditConfig, Audited, compared, divergence, draws, figures, who_is_wrong
from rl.config import PolicyConfig, SamplingConfig
from rl.learning.scoring import Scoring
from rl.loading.policy import load_policy
from rl.model.policy import Policy
from rl.records import Maker, Problem, Rollouts
from rl.sampling.sampler import sample

LOGPROBS = st.floats(-20, 0, width=32)
BOUND = AuditConfig().bound


@given(rows=st.lists(st.lists(st.tuples(LOGPROBS, LOGPROBS), min_size=1, max_size=5), min_size=1, max_size=4))
def test_it_is_the_mean_of_k3_over_the_tokens_and_nothing_else(rows: list[list[tuple[float, float]]]) -> None:
    pairs = [pair for row in rows for pair in row]
    expected = math.fsum(math.exp(q - p) - (q - p) - 1 for p, q in pairs) / len(pairs)
    p, q = (np.full((1, len(rows), 7), 1e30, np.float32) for _ in range(2))  # past the end there is anything
    tokens = np.zeros(p.shape, np.bool_)
    for at, row in enumerate(rows):
        tokens[0, at, : len(row)] = True
        p[0, at, : len(row)], q[0, at, : len(row)] = zip(*row, strict=True)
    found = divergence(p, q, tokens)
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-12)
    assert found >= 0


@pytest.mark.parametrize("odd", [math.nan, math.inf, -math.inf, 3e38])
def test_what_is_no_log_prob_is_beyond_any_bound(odd: float) -> None:
    p = np.full((1, 1, 3), -1, np.float32)
    q = p.copy()
    q[0, 0, 1] = odd
    assert divergence(p, q, np.ones_like(p, np.bool_)) == math.inf
    assert divergence(p, q, np.array([[[True, False, True]]])) == 0


def test_of_a_lease_of_several_versions_the_tokens_of_the_oldest_are_compared() -> None:
    rollouts = Rollouts.padded([Problem("1", "1", "t")], [[1]], [[5, 6, 7], [8]], version=3)
    rollouts.versions[0, 0, 2] = 4
    none = np.zeros((1, 2), np.int32)
    version, tokens = compared(rollouts, none, rollouts.lengths)
    assert version == 3
    assert tokens.tolist() == [[[True, True, False], [True, False, False]]]
    # of what one of two workers drew
    version, tokens = compared(rollouts, np.array([[1, 1]], np.int32), np.array([[2, 1]], np.int32))
    assert (version, tokens.tolist()) == (3, [[[False, True, False], [False, False, False]]])
    version, tokens = compared(rollouts, np.array([[2, 1]], np.int32), rollouts.lengths)
    assert (version, tokens.tolist()) == (4, [[[False, False, True], [False, False, False]]])


def test_observations_are_not_audited() -> None:
    flags = [[True, False, True], [True]]
    rollouts = Rollouts.padded([Problem("1", "1", "t")], [[1]], [[5, 6, 7], [8]], version=3, trained=flags)
    none = np.zeros((1, 2), np.int32)
    for version in (0, 3, 9):
        rollouts.versions[0, 0, 1] = version
        assert compared(rollouts, none, rollouts.lengths)[0] == 3
        assert np.array_equal(compared(rollouts, none, rollouts.lengths)[1], rollouts.trained)


def test_which_leases_are_audited_depends_on_their_names_and_the_seed_alone() -> None:
    names = [(seed, step, group) for seed in range(2) for step in range(40) for group in range(0, 32, 4)]
    drawn = {name: draws(*name) for name in names}
    assert {name: draws(*name) for name in reversed(names)} == drawn
    assert len(set(drawn.values())) == len(names)
    for at in range(2):
        numbers = np.array([pair[at] for pair in drawn.values()])
        assert 0 <= numbers.min() < 0.01
        assert 0.99 < numbers.max() < 1
        assert numbers.mean() == pytest.approx(0.5, abs=0.05)


@pytest.mark.parametrize(
    ("maker", "auditor", "wrong"),
    [
        (0.5, 0.0, "maker"),
        (0.0, 0.5, "auditor"),
        (math.inf, 0.1, "maker"),
        (0.5, 0.5, "undecided"),  # no two of the three agree
        (0.1, 0.1, "undecided"),  # the third stands between them
    ],
)
def test_two_of_three_decide(maker: float, auditor: float, wrong: str) -> None:
    assert who_is_wrong(maker, auditor, 0.1) == wrong


def test_of_few_tokens_a_single_odd_one_says_nothing() -> None:
    config = AuditConfig(bound=0.02)
    assert [config.allowed(tokens) for tokens in (1, 16, 64, 10_000)] == [1.28, 0.08, 0.02, 0.02]


def test_metrics_are_of_each_pair_of_workers_and_of_types() -> None:
    a, b, c = Maker("a", "float32"), Maker("b", "bfloat16"), Maker("c", "bfloat16")
    audits = [Audited(a, b, 0.5, "maker"), Audited(a, c, 0.25), Audited(b, a, 0.0), Audited(c), Audited(a, b, 0.25)]
    assert figures(audits) == {
        "audit/leases": 4,
        "audit/missed": 1,
        "audit/disagreed": 1,
        "audit/kl": 0.25,
        "audit/workers/a/b": 0.375,
        "audit/workers/a/c": 0.25,
        "audit/workers/b/a": 0.0,
        "audit/dtypes/float32/bfloat16": pytest.approx(1 / 3),
        "audit/dtypes/bfloat16/float32": 0.0,
    }
    assert figures([]) == {}
    assert figures([Audited(a)]) == {"audit/leases": 0, "audit/missed": 1, "audit/disagreed": 0}


@pytest.fixture(scope="module")
def loaded(half_right: Path) -> Callable[[str], Policy]:
    return lambda dtype: load_policy(str(half_right), PolicyConfig.model_validate({"device": "cpu", "dtype": dtype}))


@pytest.fixture(scope="module")
def sampled(sums: list[tuple[str, str]]) -> Callable[[Policy], Rollouts]:
    problems = [Problem(text, expression, "") for expression, text in sums[:8]]
    return partial(
        sample, version=0, problems=problems, config=SamplingConfig(max_tokens=16), samples=4, seed=0, step=0,
        groups=range(8),
    )  # fmt: skip


def apart(rollouts: Rollouts, by: Policy) -> float:
    return divergence(rollouts.logprobs, Scoring(by).logprobs(rollouts, 1.0), rollouts.inside)


@pytest.mark.slow
def test_types_differ_by_less_than_a_thousandth_of_the_bound_and_machines_that_agree_by_nothing(
    loaded: Callable[[str], Policy], sampled: Callable[[Policy], Rollouts]
) -> None:
    wide, narrow = loaded("float32"), loaded("bfloat16")
    assert apart(sampled(wide), wide) < 1e-10
    for maker, auditor in ((wide, narrow), (narrow, wide)):
        assert 1e-7 < apart(sampled(maker), auditor) < BOUND / 1000


@pytest.mark.parametrize("layer", range(2))
def test_a_layer_that_is_perturbed_is_beyond_the_bound_whoever_has_it(
    layer: int, loaded: Callable[[str], Policy], sampled: Callable[[Policy], Rollouts]
) -> None:
    sound, broken = loaded("float32"), loaded("float32")
    noise = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in broken.model.model.layers[layer].parameters():
            weight += 2 * weight.std() * torch.randn(weight.shape, generator=noise)
    assert apart(sampled(broken), sound) > BOUND
    assert apart(sampled(sound), broken) > BOUND
