"""Corrections: each function against float64, and the loss of tokens with one against that without."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from rl.learning import corrections
from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.corrections import KEPT, SQUARES, WEIGHTS, completion_means, near, truncated, within
from rl.learning.objective import PassObjective, PolicyObjective
from rl.records import Batch

Drawn = Callable[..., Batch]
GAPS = st.lists(st.floats(-4, 4, width=32), min_size=1, max_size=20)
MASKS = ("mask", "sequence_mask", "divergence")


# -- the functions


@given(GAPS, st.floats(1, 10))
def test_weights_are_ratios_cut_from_above(gaps: list[float], cap: float) -> None:
    expected = [min(math.exp(gap), cap) for gap in gaps]
    np.testing.assert_allclose(truncated(torch.tensor(gaps), cap), expected, rtol=1e-6)
    np.testing.assert_allclose(truncated(torch.tensor(gaps), math.inf), np.exp(gaps), rtol=1e-6)


@given(GAPS, st.floats(0, 0.9), st.floats(1.1, 10))
def test_a_ratio_is_kept_between_its_bounds(gaps: list[float], low: float, high: float) -> None:
    gaps = [gap for gap in gaps if min(abs(math.exp(gap) - low), abs(math.exp(gap) - high)) > 1e-5]
    assert within(torch.tensor(gaps), low, high).tolist() == [low <= math.exp(gap) <= high for gap in gaps]
    assert within(torch.tensor(gaps), 0, math.inf).all()


@given(
    st.lists(st.tuples(st.floats(0.001, 1), st.floats(0.001, 1), st.floats(-1, 1, width=32)), min_size=1, max_size=20)
)
def test_a_probability_may_move_further_only_against_the_advantage(tokens: list[tuple[float, float, float]]) -> None:
    tokens = [(pi, mu, a) for pi, mu, a in tokens if min(abs(pi - mu - 0.3), abs(pi - mu + 0.2)) > 1e-5]
    pi, mu, advantage = torch.tensor(tokens, dtype=torch.float32).reshape(-1, 3).T
    expected = [pi - mu <= 0.3 if a > 0 else pi - mu >= -0.2 for pi, mu, a in tokens]
    assert near(pi.log(), mu.log(), advantage, 0.2, 0.3).tolist() == expected
    assert near(pi.log(), mu.log(), advantage, math.inf, math.inf).all()


@given(st.lists(st.tuples(st.floats(-4, 4, width=32), st.integers(0, 5)), min_size=1, max_size=30), st.randoms())
def test_means_of_completions_are_theirs_in_whatever_order_tokens_lie(
    tokens: list[tuple[float, int]], random: Any
) -> None:
    random.shuffle(tokens)
    of = {each: [value for value, other in tokens if other == each] for _, each in tokens}
    found = completion_means(torch.tensor([value for value, _ in tokens]), torch.tensor([each for _, each in tokens]))
    np.testing.assert_allclose(found, [math.fsum(of[each]) / len(of[each]) for _, each in tokens], atol=1e-5)


@given(st.lists(st.tuples(st.floats(0.01, 10), st.booleans()), min_size=1, max_size=30))
def test_the_effective_sample_size_is_kishs(tokens: list[tuple[float, bool]]) -> None:
    used = [weight if kept else 0.0 for weight, kept in tokens]
    sums = {KEPT: sum(kept for _, kept in tokens), WEIGHTS: sum(used), SQUARES: sum(w * w for w in used), "loss": 1.0}
    found = corrections.figures(sums, len(tokens))
    assert sums == {"loss": 1.0}
    assert found["correction/kept"] == pytest.approx(np.mean([kept for _, kept in tokens]))
    if not any(used):
        assert found["correction/ess"] == 0
        return
    shares = np.array(used) / sum(used)
    assert found["correction/ess"] == pytest.approx(1 / (shares**2).sum() / len(tokens))
    assert found["correction/ess"] <= found["correction/kept"] + 1e-9


def test_without_a_correction_there_are_no_figures_of_one() -> None:
    assert corrections.figures({"loss": 1.0}, 3) == {}


# -- the loss of tokens


def of_tokens(spec: AlgorithmSpec, tokens: list[tuple[float, float, float]]) -> tuple[Tensor, Tensor, dict[str, float]]:
    """Loss, its gradient with respect to log pi, and the sums, of completions of three tokens each."""
    pi, gap, advantage = torch.tensor(tokens, dtype=torch.float64).T
    objective = PolicyObjective(
        algorithm=spec.algorithm,
        advantage=advantage,
        weight=torch.linspace(0.1, 1, len(tokens), dtype=torch.float64),
        behaviour=pi - gap,
        alpha=None if spec.proximal == "behaviour" else torch.ones_like(pi),
        importance_cap=spec.importance_bound,
        correction=spec.correction,
    )
    of_pass = PassObjective(objective, torch.arange(len(tokens)) // 3, 1.0)
    if objective.by_sequence:
        of_pass.see(pi)
    at = pi.requires_grad_()
    loss = of_pass.loss(at, slice(None))
    (gradient,) = torch.autograd.grad(loss, at)
    return loss.detach(), gradient, of_pass.sums(at.detach(), torch.zeros_like(pi))


TOKENS = st.lists(
    st.tuples(st.floats(-5, -0.01), st.floats(-2.5, 2.5), st.floats(-2, 2)), min_size=1, max_size=12
)  # log pi, log pi - log mu, advantage


@pytest.mark.slow
@pytest.mark.parametrize("proximal", ["behaviour", "recomputed"])
@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("name", ["reinforce", "grpo", "gspo", "sapo"])
@settings(max_examples=25)
@given(tokens=TOKENS)
def test_what_is_masked_has_no_gradient_and_the_others_have_the_same(
    name: str, kind: str, proximal: str, tokens: list[tuple[float, float, float]]
) -> None:
    if (kind, proximal) == ("divergence", "behaviour") and name != "reinforce":
        with pytest.raises(ValueError, match=f"stands in place of a clip, and {name} clips the same ratio"):
            AlgorithmSpec(name=name, correction={"kind": kind})
        return
    spec = AlgorithmSpec(name=name, correction={"kind": kind}, proximal=proximal)
    kept = []
    for index, (pi, gap, a) in enumerate(tokens):
        whole = [gap for _, gap, _ in tokens[index // 3 * 3 : index // 3 * 3 + 3]]
        ratio = math.exp(gap) if kind == "mask" else math.exp(math.fsum(whole) / len(whole))
        moved = math.exp(pi) - math.exp(pi - gap)
        low, high = spec.correction.bounds
        edges = (moved - high, moved + low) if kind == "divergence" else (ratio - low, ratio - high)
        if min(map(abs, edges)) < 1e-9:
            return
        kept.append((moved <= high if a > 0 else moved >= -low) if kind == "divergence" else low <= ratio <= high)
    _, gradient, sums = of_tokens(spec, tokens)
    _, whole_gradient, _ = of_tokens(AlgorithmSpec(name=name, proximal=proximal), tokens)
    assert torch.equal(gradient, torch.where(torch.tensor(kept), whole_gradient, 0.0))
    assert sums[KEPT] == sum(kept)
    weights = [
        weight_of(name, proximal, gap, [gap for _, gap, _ in tokens[index // 3 * 3 : index // 3 * 3 + 3]], a)
        for index, (_, gap, a) in enumerate(tokens)
        if kept[index]
    ]
    assert sums[WEIGHTS] == pytest.approx(math.fsum(weights), rel=1e-6)
    assert sums[SQUARES] == pytest.approx(math.fsum(weight**2 for weight in weights), rel=1e-6)


def weight_of(name: str, proximal: str, gap: float, whole: list[float], a: float) -> float:
    """Of ∇log pi of a token of that advantage, beside it: `gap` is log(pi/mu) of the token, `whole` of its completion.
    Where the proximal policy is pi itself, pi/old is 1."""
    ratio = math.exp(gap)
    if proximal != "behaviour":
        return min(ratio, 5.0)
    match name:
        case "reinforce":
            return min(ratio, 2.0)
        case "grpo":
            return 0.0 if (ratio > 1.2 if a > 0 else ratio < 0.8 or ratio > 3.0) else ratio
        case "gspo":
            ratio = math.exp(math.fsum(whole) / len(whole))
            return 0.0 if (ratio > 1 + 4e-4 if a > 0 else ratio < 1 - 3e-4) else ratio
        case _:
            half = (1.0 if a > 0 else 1.05) * (ratio - 1) / 2
            return ratio / math.cosh(half) ** 2  # 4 p (1 - p) of p = sigmoid(2 half)


def test_the_effective_sample_size_is_of_the_weights_that_are_in_the_loss() -> None:
    """A thousand tokens, one of which has become likely: `divergence` keeps it, and the loss cuts its weight."""
    risen = math.log(0.05), math.log(0.05 / 1e-6), 1.0
    tokens = [risen, *[(-1.0, 0.0, (-1.0) ** n) for n in range(999)]]
    for name, cap in (("cispo", 5.0), ("reinforce", 2.0)):
        spec = AlgorithmSpec(name=name, correction={"kind": "divergence"})
        _, gradient, sums = of_tokens(spec, tokens)
        advantage = np.array([a for _, _, a in tokens])
        by_hand = np.abs(gradient.numpy() / (np.linspace(0.1, 1, 1000) * advantage))
        np.testing.assert_allclose(by_hand, [cap, *[1.0] * 999])
        found = corrections.figures(sums, 1000)
        assert found["correction/kept"] == 1
        assert found["correction/ess"] == pytest.approx((cap + 999) ** 2 / (1000 * (cap**2 + 999)))


@given(TOKENS)
def test_truncated_weights_of_the_decoupled_loss_are_cut_at_the_bound(tokens: list[tuple[float, float, float]]) -> None:
    spec = AlgorithmSpec(name="dapo", proximal="recomputed", correction={"kind": "truncate", "high": 1.5})
    loss, gradient, sums = of_tokens(spec, tokens)
    weight = np.linspace(0.1, 1, len(tokens))
    cut = [min(math.exp(gap), 1.5) for _, gap, _ in tokens]
    expected = [-w * c * a for w, c, (_, _, a) in zip(weight, cut, tokens, strict=True)]
    np.testing.assert_allclose(gradient, expected, atol=1e-9)
    assert float(loss) == pytest.approx(math.fsum(expected), abs=1e-9)  # the ratio to the proximal policy is 1
    assert sums[KEPT] == len(tokens)
    assert (sums[WEIGHTS], sums[SQUARES]) == pytest.approx((sum(cut), sum(c * c for c in cut)), rel=1e-6)


@pytest.mark.parametrize("kind", MASKS)
@pytest.mark.parametrize("gap", [1000.0, -1000.0])
def test_a_token_as_good_as_impossible_spoils_nothing(kind: str, gap: float) -> None:
    spec = AlgorithmSpec(name="cispo", correction={"kind": kind})
    _, gradient, sums = of_tokens(spec, [(-0.1, gap, 1.0 if gap > 0 else -1.0), (-1.0, 0.0, 1.0)])
    assert gradient.isfinite().all()
    assert all(math.isfinite(value) for value in corrections.figures(sums, 2).values())


@pytest.mark.parametrize("kind", MASKS)
def test_what_is_no_number_is_not_hidden_by_a_mask(kind: str) -> None:
    loss, _, _ = of_tokens(
        AlgorithmSpec(name="cispo", correction={"kind": kind}), [(-1.0, math.nan, 1.0), (-1.0, 0.0, 1.0)]
    )
    assert loss.isnan()
