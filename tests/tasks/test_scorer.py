"""Which version is the reference of a step, what stays for it, and what a worker keeps of it."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.cluster.resident import drop, resident_now
from infra.weights.version import PolicyVersion
from rl.config import PolicyConfig, SamplingConfig
from rl.learning.scoring import Scoring
from rl.records import Problem
from tasks.calls.generator import BrokenPolicyError, Generator
from tasks.calls.scorer import Referee, ReferenceSchedule, Scorer
from tasks.calls.weights import Weights
from tests.tasks.test_generator import published

GENERATOR = Generator(PolicyConfig(device="cpu"), SamplingConfig(max_tokens=12), samples=4, seed=0)
SCORER = Scorer(GENERATOR.weights, 1.0)


@pytest.mark.parametrize(
    ("every", "staleness", "versions"),
    [
        (0, 0, [0] * 9),
        (3, 0, [0, 0, 0, 3, 3, 3, 6, 6, 6]),
        (3, 2, [0, 0, 0, 0, 0, 3, 3, 3, 6]),
        (1, 1, [0, 0, 1, 2, 3, 4, 5, 6, 7]),
    ],
)
def test_the_reference_follows_among_versions_that_are_there(every: int, staleness: int, versions: list[int]) -> None:
    reference = ReferenceSchedule(every, staleness)
    assert [reference.version(step) for step in range(9)] == versions


@given(
    every=st.integers(0, 9),
    staleness=st.integers(0, 5),
    first=st.integers(0, 40),
    more=st.integers(0, 20),
    ahead=st.integers(0, 30),
)
def test_what_a_step_refers_to_stays(every: int, staleness: int, first: int, more: int, ahead: int) -> None:
    reference, newest = ReferenceSchedule(every, staleness), first + more
    step = min(first + ahead, newest + staleness)
    assert reference.version(step) in reference.versions(first, newest)
    assert reference.version(step) <= max(0, step - staleness) <= newest  # it is there
    assert len(reference.versions(first, newest)) <= 1 + (more + staleness) // max(1, every) + 1


@pytest.mark.slow
def test_a_reference_stays_beside_a_sampler_of_another_version(tmp_path: Path) -> None:
    old, new = (published(tmp_path / "run", step) for step in (0, 1))
    problems = [Problem("add 1 and 2", "1 + 2", "here:1"), Problem("add 3 and 4", "3 + 4", "here:2")]
    own = GENERATOR.generate(old, 0, range(2), problems)
    assert np.abs(SCORER.score(old, own) - own.logprobs).max() < 1e-5
    later = GENERATOR.generate(new, 1, range(2), problems)
    kept = resident_now("reference")
    assert np.abs(SCORER.score(old, later) - later.logprobs).max() > 1e-2
    assert resident_now("reference") is kept
    assert np.abs(SCORER.score(new, later) - later.logprobs).max() < 1e-5
    assert resident_now("reference") is not kept
    assert GENERATOR.generate(old, 0, range(2), problems).tokens.tobytes() == own.tokens.tobytes()
    drop("sampler")
    drop("reference")


@pytest.mark.parametrize(("dtype", "gap"), [("float32", 1e-5), ("bfloat16", 0.2)])
def test_the_arithmetic_is_the_policy_s(tmp_path: Path, dtype: str, gap: float) -> None:
    version = published(tmp_path / "run", 0)
    rollouts = GENERATOR.generate(version, 0, [0], [Problem("add 1 and 2", "1 + 2", "here:1")])
    config = PolicyConfig.model_validate({"device": "cpu", "dtype": dtype})
    found = np.abs(Scorer(Weights(config), 1.0).score(version, rollouts) - rollouts.logprobs).max()
    assert found < gap
    assert (found > 1e-4) == (dtype == "bfloat16")
    scoring = resident_now("reference")
    assert isinstance(scoring, Scoring)
    assert str(next(scoring.policy.model.parameters()).dtype) == f"torch.{dtype}"
    drop("sampler")
    drop("reference")


def test_scores_that_are_not_finite_are_no_scores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    version = published(tmp_path / "run", 0)
    rollouts = GENERATOR.generate(version, 0, [0], [Problem("add 1 and 2", "1 + 2", "here:1")])
    monkeypatch.setattr(Scoring, "logprobs", lambda *_, **__: np.full_like(rollouts.logprobs, np.nan))
    with pytest.raises(BrokenPolicyError, match=r"^reference v0 \(.*\) gives log-probs that are not finite"):
        SCORER.score(version, rollouts)
    drop("sampler")
    drop("reference")


def test_a_version_that_is_gone_is_named(tmp_path: Path) -> None:
    version = published(tmp_path / "run", 3)
    gone = PolicyVersion(2, version.uri.replace("v3", "v2"), "0" * 64)
    rollouts = GENERATOR.generate(version, 3, [0], [Problem("add 1 and 2", "1 + 2", "here:1")])
    with pytest.raises(Exception, match=r"v2 was removed: the newest version is v3"):
        replace(SCORER, weights=replace(SCORER.weights, patience=0)).score(gone, rollouts)
    drop("sampler")


@pytest.mark.slow
def test_a_referee_scores_as_a_reference_does_and_keeps_nothing(tmp_path: Path) -> None:
    version = published(tmp_path / "run", 0)
    rollouts = GENERATOR.generate(version, 0, [0], [Problem("add 1 and 2", "1 + 2", "here:1")])
    expected = SCORER.score(version, rollouts)
    kept = resident_now("reference")
    assert Referee(GENERATOR.weights, 1.0).score(version, rollouts).tobytes() == expected.tobytes()
    assert resident_now("referee") is None
    assert resident_now("reference") is kept
    drop("sampler")
    drop("reference")
