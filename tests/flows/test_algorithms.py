"""Runs by algorithms that do more than the default one, on a cluster."""

import math
from pathlib import Path
from typing import Any

import pytest


@pytest.mark.parametrize(
    ("options", "logged"),
    [
        (
            {"algorithm": "gspo", "algorithm__minibatches": "2", "algorithm__proximal": "recomputed"},
            ["policy/clip_fraction", "policy/importance_weight"],
        ),
        ({"algorithm": "m2po", "algorithm__epochs": "2", "staleness": "1"}, ["policy/masked_fraction"]),
        (
            {"algorithm": "dapo", "algorithm__proximal": "interpolated", "algorithm__entropy": "0.01"},
            ["policy/entropy"],
        ),
    ],
    ids=["gspo", "m2po", "dapo"],
)
def test_a_run_logs_what_its_algorithm_says(lab: Any, options: dict[str, str], logged: list[str]) -> None:
    result = lab.train(**options, steps="2")
    run = Path(result.run)
    for name in ("loss/policy", "policy/grad_norm", *logged):
        found = lab.metrics(run, name)
        assert list(found) == [1, 2], name
        assert all(math.isfinite(value) for value in found.values()), name


def test_an_algorithm_without_group_baseline_trains_on_every_group(lab: Any) -> None:
    run = Path(lab.train(algorithm="reinforce_pp", steps="2").run)
    generated, used = lab.metrics(run, "groups/generated"), lab.metrics(run, "groups/used")
    assert set(generated.values()) == {4}  # none is replaced
    assert generated == used


def test_several_optimizer_steps_a_batch_are_the_same_again_after_a_resume(lab: Any) -> None:
    options = {"algorithm": "grpo", "algorithm__minibatches": "2", "algorithm__epochs": "2", "staleness": "0"}
    whole = Path(lab.train(**options, steps="3").run)
    part = lab.train(**options, steps="2").run
    lab.train(resume=part, **options, steps="3")
    assert lab.weights_digest(whole, 3) == lab.weights_digest(Path(part), 3)
