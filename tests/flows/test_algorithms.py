"""Runs by algorithms that do more than the default one, on a cluster."""

import math
from pathlib import Path
from typing import Any

import pytest

from flows.planner.calls import graph_named
from flows.planner.measured import measured_step
from flows.run.training import Training
from infra.runs.record import read_record

pytestmark = pytest.mark.slow


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
        (
            {"algorithm": "cispo", "algorithm__correction": "sequence_mask", "staleness": "2"},
            ["correction/kept", "correction/ess"],
        ),
    ],
    ids=["gspo", "m2po", "dapo", "corrected"],
)
def test_a_run_logs_what_its_algorithm_says(lab: Any, options: dict[str, str], logged: list[str]) -> None:
    result = lab.train(**options, steps="2")
    run = Path(result.run)
    for name in ("loss/policy", "policy/grad_norm", *logged):
        found = lab.metrics(run, name)
        assert list(found) == [1, 2], name
        assert all(math.isfinite(value) for value in found.values()), name


def test_a_run_whose_loss_clips_around_an_old_policy_begins_with_a_warning(
    lab: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.train(algorithm="grpo", staleness="2", steps="1")
    assert (
        capsys.readouterr().err.count("warning: with staleness 2 grpo clips around a policy of up to 2 versions ago")
        == 1
    )


def test_remax_is_given_the_reward_of_a_greedy_completion_of_each_prompt(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: dict[int, Any] = {}
    keep = Training.keep

    def keeps(training: Training, step: int, batch: Any) -> None:
        seen[step] = batch
        keep(training, step, batch)

    monkeypatch.setattr(Training, "keep", keeps)
    run = Path(lab.train(algorithm="remax", steps="3").run)
    for step, batch in seen.items():
        assert batch.batch.baseline.shape == (4,)
        assert set(batch.batch.baseline.tolist()) <= {0.0, 1.0}
        assert lab.metrics(run, "reward/greedy")[step + 1] == batch.everything.baseline.mean()
    assert list(seen) == [0, 1, 2]
    made = measured_step(
        read_record(str(run), run), run.name
    )  # by their own names, so that they can be placed and planned
    assert set(made.calls) >= {call.name for call in graph_named("remax", kl=False).calls}
    assert made.leases["greedy"] == made.leases["generate"]


def test_ppo_trains_a_critic_beside_the_policy(lab: Any) -> None:
    run = Path(lab.train(algorithm="ppo", steps="3", staleness="0").run)
    for name in ("critic/loss", "critic/explained_variance", "critic/value_mean", "loss/policy"):
        found = lab.metrics(run, name)
        assert list(found) == [1, 2, 3], name
        assert all(math.isfinite(value) for value in found.values()), name
    assert (run / "critic" / "weights").is_dir()
    part = lab.train(algorithm="ppo", steps="2", staleness="0").run
    lab.train(resume=part, algorithm="ppo", steps="3", staleness="0")
    for of in (".", "critic"):
        assert lab.weights_digest(run / of, 3) == lab.weights_digest(Path(part) / of, 3)


def test_kl_to_the_policy_of_every_second_step_starts_at_nothing(lab: Any) -> None:
    """The reference of step 2 is version 2, and so on: on-policy its divergence is that of rounding."""
    options = {"algorithm__kl": "0.05", "algorithm__kl__reference_every": "2", "staleness": "0", "steps": "4"}
    apart = lab.metrics(Path(lab.train(**options).run), "loss/kl_reference")
    assert list(apart) == [1, 2, 3, 4]
    assert max(apart[1], apart[3]) < 1e-6
    assert min(apart[2], apart[4]) > 1e-6


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
