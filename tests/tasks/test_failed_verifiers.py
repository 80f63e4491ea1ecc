"""Verifiers that fail while a batch is made."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, repeat
from pathlib import Path

import numpy as np
import pytest

from infra.runs.metric_log import MetricLog
from rl.judging import BrokenVerifierError, Judgement
from rl.verifiers.spec import VerifierSpec
from tasks.batch.collection import Collection
from tasks.batch.rollout_batch import REASONS, counted, few_reasons
from tests.tasks.batches import config, groups, problem_set, rollouts


def judged_as(
    rewards: list[list[float]], sets: Sequence[str] = ("",), oversample: float = 1, said: str = "it broke"
) -> Collection:
    """Groups with these rewards (nan: the verifier failed), of these sets in turn."""
    problems = replace(problem_set(), verifiers={name: VerifierSpec(name="arithmetic") for name in sets})
    asked = config(prompts=len(rewards), samples=len(rewards[0]), oversample=oversample, lease=len(rewards))
    collection = Collection(0, problems, asked)
    (lease,) = next(collection.draws())
    marked = replace(lease, problems=tuple(replace(p, set=sets[i % len(sets)]) for i, p in enumerate(lease.problems)))
    values = np.array(rewards, np.float32)
    reasons = tuple(tuple("timeout" if r != r else "judged" for r in row) for row in rewards)
    why = chain([said], repeat("and again"))
    messages = tuple(tuple(next(why) if r != r else "" for r in row) for row in rewards)
    parts = {"format": np.where(np.isnan(values), np.nan, 0.5).astype(np.float32)}
    collection.arrive(marked, rollouts(marked, values.shape[1]))
    collection.judged(marked, rollouts(marked, values.shape[1]), Judgement(values, reasons, parts, messages))
    return collection


NAN = float("nan")


def test_a_group_with_less_than_two_verdicts_is_not_trained_on_and_a_failure_is_no_zero() -> None:
    found = judged_as([[1, 0], [1, NAN], [0, 0], [NAN, NAN], [0, 1]]).collected()
    assert groups(found) == [0, 4]
    figures = found.figures()
    assert figures["reward/error_rate"] == pytest.approx(0.3)
    assert [figures["reward/mean"], figures["reward/pass_rate"]] == pytest.approx([3 / 7, 3 / 7])
    assert figures["reward/format"] == pytest.approx(0.5)
    assert (figures["groups/generated"], figures["groups/failed"], figures["groups/zero_variance"]) == (5, 2, 1)
    assert figures["reasons/timeout"] == pytest.approx(0.3)
    assert found.messages == (("", ""), ("", "it broke"), ("", ""), ("and again", "and again"), ("", ""))
    assert not np.isnan(found.batch.rewards).any()


def test_a_group_is_trained_on_the_verdicts_that_are_there() -> None:
    found = judged_as([[1, 0, NAN], [1, NAN, 1], [1, NAN, NAN], [NAN, 0, 0.5]]).collected()
    assert groups(found) == [0, 3]
    figures = found.figures()
    assert (figures["groups/generated"], figures["groups/failed"], figures["groups/zero_variance"]) == (4, 1, 1)
    assert np.array_equal(found.batch.rewards, [[1, 0, NAN], [NAN, 0, 0.5]], equal_nan=True)


def test_a_step_of_failures_alone_ends_the_run_with_the_first_message_and_without_replacements() -> None:
    collection = judged_as([[NAN, NAN], [NAN, NAN]], oversample=10, said="it broke \x1b[31m")
    assert list(collection.draws()) == []
    with pytest.raises(BrokenVerifierError) as ended:
        collection.collected()
    # and Prefect's commands may print it
    assert str(ended.value) == r"no completion of step 1 could be judged: it broke \x1b[31m"


@pytest.mark.parametrize("cut", [1, 4])
def test_completions_that_were_cut_do_not_hide_that_a_verifier_fails_on_everything(cut: int) -> None:
    failed = Judgement(
        np.full((2, 2), NAN, np.float32), (("timeout",) * 2,) * 2, messages=(("it broke", "and again"),) * 2
    )
    truncated = np.arange(4).reshape(2, 2) < cut
    collection = Collection(0, problem_set(), config(prompts=4, samples=2, oversample=10, lease=2))
    for lease in next(collection.draws()):
        collection.arrive(lease, rollouts(lease, 2))
        collection.judged(lease, rollouts(lease, 2), failed.without_ends(truncated))
    assert list(collection.draws()) == []
    with pytest.raises(BrokenVerifierError, match="no completion of step 1 could be judged: it broke"):
        collection.collected()
    # one that was judged is enough, whatever else was cut
    one = replace(failed, rewards=np.float32([[NAN, NAN], [NAN, 1]]))
    assert not Judgement.join([failed.without_ends(truncated), one.without_ends(truncated)]).broken


def test_pass_rates_are_told_by_set_where_there_are_several() -> None:
    rewards: list[list[float]] = [[1, 0], [1, 1], [0, 0], [1, 0.5]]
    figures = judged_as(rewards, sets=["sums", "words"]).collected().figures()
    assert figures["reward/sums/pass_rate"] == pytest.approx(1 / 4)
    assert figures["reward/words/pass_rate"] == pytest.approx(3 / 4)
    alone = judged_as(rewards, sets=["sums"]).collected().figures()
    assert [name for name in alone if name.startswith("reward/") and name.endswith("/pass_rate")] == [
        "reward/pass_rate"
    ]
    all_failed = judged_as([[1, 0], [NAN, NAN]], sets=["sums", "words"]).collected().figures()
    assert "reward/words/pass_rate" not in all_failed


def test_reasons_of_any_text_become_few_names_that_a_metric_may_have() -> None:
    assert counted({"right": 3, "off by 2": 1, "off/by\n2": 1, "": 2, "\ud800": 1}) == {
        "right": 3,
        "other": 3,
        "off_by_2": 2,
    }
    many = counted({f"got {i}": 1000 - i for i in range(500)})
    assert len(many) == 21
    assert sum(many.values()) == sum(1000 - i for i in range(500))
    assert many["got_0"] == 1000


def test_a_run_keeps_the_reasons_that_came_first(tmp_path: Path) -> None:
    log = MetricLog(tmp_path / "metrics.jsonl")
    for step in range(1, 5):
        if step == 3:
            log = MetricLog(tmp_path / "metrics.jsonl")  # resumed
        quoting = {f"reasons/got_{step}_{at}": 0.03 for at in range(9)}
        figures = few_reasons({"reward/mean": 0.5, "reasons/right": 0.73, **quoting, "reasons/other": 0.0}, log.last)
        assert sum(value for name, value in figures.items() if name.startswith("reasons/")) == pytest.approx(1)
        assert (figures["reward/mean"], figures["reasons/right"]) == (0.5, 0.73)
        log.append(step, figures)
    kept = [name for name in log.last if name.startswith("reasons/")]
    assert len(kept) == REASONS + 1
    assert {"reasons/right", "reasons/other", "reasons/got_2_8"} < set(kept)
    assert figures["reasons/other"] == pytest.approx(0.27)
