"""Whole updates with a correction: against a loop in float64, and against updates without."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.correction_config import CorrectionConfig
from rl.learning.learner import Learner
from rl.model import scores
from rl.records import Batch
from tests.rl.updates import PLAIN, REWARDS, Make, compare, gradient_of, identical, normalised, off_policy, weights

Drawn = Callable[..., Batch]
MASKS = ("mask", "sequence_mask", "divergence")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("reinforce", {"correction": {"kind": "mask", "low": 0.8, "high": 1.3}}),
        ("cispo", {"correction": {"kind": "divergence", "low": 0.004, "high": 0.006}}),
        ("dapo", {"correction": {"kind": "sequence_mask", "low": 0.95, "high": 1.1}, "overlong": 0}),
        (
            "dapo",
            {
                "correction": {"kind": "sequence_mask", "low": 0.95, "high": 1.1},
                "overlong": 0,
                "proximal": "interpolated",
            },
        ),
        ("grpo", {"correction": {"kind": "truncate", "high": 1.2}, "proximal": "recomputed"}),
        ("grpo", {"correction": {"kind": "mask", "low": 0.8, "high": 1.3}, "proximal": "recomputed"}),
    ],
    ids=["mask", "divergence", "sequence_mask", "sequence_mask-decoupled", "truncate", "icepop"],
)
def test_the_gradient_is_that_of_a_loop_in_float64(
    name: str, options: dict[str, Any], sequences: Callable[..., Any]
) -> None:
    policy, batch, model, pi, mu = sequences()
    batch = replace(batch, rollouts=replace(batch.rollouts, versions=batch.rollouts.versions - 1))
    kind = options["correction"]["kind"]
    low, high = options["correction"].get("low", 0.0), options["correction"]["high"]
    tokens = sum(len(of) for of in pi.values())  # also of those that are left out
    total, kept = torch.zeros((), dtype=torch.float64), 0.0
    seen: list[Tensor] = []
    for (p, g), of in pi.items():
        now, old = of.detach(), mu[p, g]
        a = REWARDS[p][g] - sum(REWARDS[p]) / 4 if name == "reinforce" else normalised(REWARDS[p])[g]
        ratio, moved = (now - old).exp(), now.exp() - old.exp()
        match kind:
            case "mask":
                stays = (low <= ratio) & (ratio <= high)
            case "sequence_mask":
                stays = torch.full_like(now, low <= float((now - old).mean().exp()) <= high, dtype=torch.bool)
            case "divergence":
                stays = moved <= high if a > 0 else moved >= -low
            case _:
                stays = torch.ones_like(now, dtype=torch.bool)
        match name:
            case "reinforce" | "cispo":
                term = ratio.clamp(max=2.0 if name == "reinforce" else 5.0) * a * of
            case "dapo" if "proximal" not in options:
                live = (of - old).exp()
                term = torch.minimum(live * a, live.clamp(0.8, 1.28) * a)
            case _:
                term = ratio.clamp(max=high if kind == "truncate" else 5.0) * a * (of - now).exp()
        share = 1 / (len(pi) * len(of)) if name == "grpo" else 1 / tokens
        total = total - (term * stays).sum() * share
        kept += float(stays.sum()) / tokens
        if name == "dapo" and "proximal" not in options:  # what is clipped has no gradient
            weighs = torch.where(ratio > 1.28 if a > 0 else ratio < 0.8, 0, ratio)
        else:
            weighs = ratio.clamp(max=high if kind == "truncate" else 2.0 if name == "reinforce" else 5.0)
        seen.append(torch.where(stays, weighs, 0))
    learner = Learner(policy, PLAIN)
    compare(gradient_of(learner, batch, AlgorithmSpec(name=name, **options)), model, total)
    assert learner.learned is not None
    found = learner.learned.metrics
    assert found["correction/kept"] == pytest.approx(kept)
    assert (found["correction/kept"] < 1) == (kind != "truncate")
    weight = torch.cat(seen)
    assert found["correction/ess"] == pytest.approx(float(weight.sum() ** 2 / weight.square().sum()) / tokens, rel=1e-4)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        *((name, {"correction": {"kind": kind}}) for name in ("reinforce", "cispo") for kind in MASKS),
        *(
            (name, {"correction": {"kind": kind}})
            for name in ("grpo", "gspo", "sapo")
            for kind in ("mask", "sequence_mask")
        ),
        *(("dapo", {"correction": {"kind": kind}, "proximal": "recomputed"}) for kind in (*MASKS, "truncate")),
        ("grpo", {"correction": {"kind": "sequence_mask"}, "minibatches": 2}),
    ],
)
def test_on_policy_no_bit_differs(name: str, options: dict[str, Any], make_policy: Make, drawn: Drawn) -> None:
    learners = [Learner(make_policy(eager=4.0), PLAIN) for _ in range(2)]
    batch = drawn(learners[0].policy)
    plain = {key: value for key, value in options.items() if key != "correction"}
    without, with_it = (
        learner.update(batch, AlgorithmSpec(name=name, **of), 1.0).metrics
        for learner, of in zip(learners, (plain, options), strict=True)
    )
    assert identical(*map(weights, learners))
    assert with_it.pop("correction/kept") == 1
    assert with_it.pop("correction/ess") == pytest.approx(1, abs=0.01 if "minibatches" in options else 1e-6)
    assert with_it == without


@pytest.mark.parametrize("kind", MASKS)
def test_with_bounds_that_nothing_reaches_no_bit_differs_however_far_the_policy_has_moved(
    kind: str, make_policy: Make, drawn: Drawn
) -> None:
    batch = off_policy(drawn(make_policy(eager=4.0)), 1.0)
    learners = [Learner(make_policy(eager=4.0), PLAIN) for _ in range(2)]
    low, high = (math.inf, 0.9999) if kind == "divergence" else (0, 1e30)
    wide = CorrectionConfig(kind=kind, low=low, high=high)  # type: ignore[arg-type]
    for learner, correction in zip(learners, (CorrectionConfig(), wide), strict=True):
        learner.update(batch, AlgorithmSpec(name="cispo", correction=correction), 1.0)
    assert identical(*map(weights, learners))
    assert learners[1].learned is not None
    assert learners[1].learned.metrics["correction/kept"] == 1
    assert learners[1].learned.metrics["correction/ess"] < 0.9


@pytest.mark.parametrize("positions", [1, 10_000])
@pytest.mark.parametrize("kind", MASKS)
def test_how_tokens_are_packed_and_taken_in_chunks_changes_no_mask(
    kind: str, positions: int, make_policy: Make, drawn: Drawn, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A completion is judged whole, also where its log-probs are taken two at a time."""
    batch = off_policy(drawn(make_policy(eager=4.0)), 0.5)
    close = {"mask": (0.8, 1.3), "sequence_mask": (0.9, 1.1), "divergence": (0.005, 0.005)}[kind]
    config = AlgorithmSpec(name="cispo", correction={"kind": kind, "low": close[0], "high": close[1]})
    whole = Learner(make_policy(eager=4.0), PLAIN)
    expected = gradient_of(whole, batch, config)
    split = Learner(make_policy(eager=4.0), PLAIN.model_copy(update={"microbatch_tokens": positions}))
    monkeypatch.setattr(scores, "CHUNK", 2 * split.policy.model.config.vocab_size)
    found = gradient_of(split, batch, config)
    assert whole.learned is not None
    assert split.learned is not None
    assert 0 < split.learned.metrics["correction/kept"] == whole.learned.metrics["correction/kept"] < 1
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_a_batch_of_which_nothing_is_kept_moves_nothing_and_says_so(make_policy: Make, drawn: Drawn) -> None:
    batch = drawn(make_policy(eager=4.0))
    batch = replace(batch, rollouts=replace(batch.rollouts, logprobs=batch.rollouts.logprobs - 3))
    learner = Learner(make_policy(eager=4.0), PLAIN)
    before = weights(learner)
    learned = learner.update(batch, AlgorithmSpec(name="cispo", correction={"kind": "mask"}), 1.0)
    assert (learned.metrics["correction/kept"], learned.metrics["correction/ess"]) == (0, 0)
    assert learned.metrics["policy/grad_norm"] == 0
    assert identical(before, weights(learner))


def test_the_figures_are_of_all_optimizer_steps(make_policy: Make, drawn: Drawn) -> None:
    """Those of later ones see how far the ones before went."""
    fast = PLAIN.model_copy(update={"lr": 0.05, "clip_norm": 1e9})
    shares = []
    for epochs in (1, 4):
        learner = Learner(make_policy(eager=4.0), fast)
        config = AlgorithmSpec(name="cispo", correction={"kind": "divergence"}, epochs=epochs)
        shares.append(learner.update(drawn(learner.policy), config, 1.0).metrics["correction/kept"])
    assert shares[0] == 1
    assert 0 < shares[1] < 1
