from math import nan

import pytest

from flows.run.advice import Advice
from infra.runs.metric_log import MetricLine

FINE = {
    "groups/used": 8.0,
    "completion/truncated": 0.2,
    "reward/mean": 0.4,
    "reward/pass_rate": 0.4,
    "reward/error_rate": 0.0,
    "policy/mismatch_kl": 0.001,
    "correction/kept": 0.95,
}


def test_a_run_that_goes_well_gets_none() -> None:
    advice = Advice(40)
    assert [advice.after({**FINE, "policy/mismatch_kl": mismatch}) for mismatch in (0.001, nan, 0.09)] == [[], [], []]


@pytest.mark.parametrize(
    "figures",
    [
        {"completion/truncated": 0.97},
        {"policy/mismatch_kl": 0.3},
        {"correction/kept": 0.1},
        {"reward/error_rate": 0.9},
    ],
    ids=["cut", "mismatch", "left out", "not judged"],
)
def test_two_steps_of_five_are_no_reason_for_one(figures: dict[str, float]) -> None:
    advice = Advice(40)
    said = [advice.after(FINE | (figures if step in (0, 3) else {})) for step in range(10)]
    assert said == [[]] * 10


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"completion/truncated": 0.97}, "cut at sampling.max_tokens 40, before an answer at their end: go on with a"),
        ({"policy/mismatch_kl": 0.3}, "go on with a lower staleness or optimizer.lr (--resume)"),
        ({"correction/kept": 0.1}, "algorithm.correction leaves 90% of the tokens out of the loss"),
        ({"reward/error_rate": 0.37}, "37% of the completions could not be judged"),
        # what could be judged is all right, which is no reason to stop
        ({"reward/error_rate": 0.96, "reward/pass_rate": 1.0, "groups/used": 0.0}, "have it return 0"),
    ],
)
def test_each_is_said_once_by_the_median_of_five_steps(figures: dict[str, float], words: str) -> None:
    advice = Advice(40)
    said = [advice.after(FINE | of) for of in [figures, {}, figures, {}, figures, figures, figures]]
    assert [len(lines) for lines in said] == [0, 0, 0, 0, 1, 0, 0]
    assert words in said[4][0]
    assert "\n" not in said[4][0]


def test_a_step_without_an_update_says_nothing_of_the_mismatch() -> None:
    advice = Advice(40)
    said = [advice.after({**FINE, "policy/mismatch_kl": nats}) for nats in (0.3, nan, 0.3, nan, 0.3, 0.3, 0.3)]
    assert [len(lines) for lines in said] == [0, 0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("resumed", [True, False])
@pytest.mark.parametrize(
    ("first", "last", "collapsed"), [(5.98, 2e-17, True), (1.2, 0.3, False), (0.06, 0.04, False), (nan, nan, False)]
)
def test_a_policy_that_has_collapsed_is_said_to_be_one(
    first: float, last: float, collapsed: bool, resumed: bool
) -> None:
    advice = Advice(40)
    begun = {**FINE, "policy/entropy": first}
    if resumed:
        advice.begin([MetricLine(1, 0, begun), MetricLine(2, 0, {"eval/reward": 0.1})])
    else:
        advice.after(begun)
    advice.after({**FINE, "policy/entropy": last})
    idle = {**FINE, "groups/used": 0.0, "policy/mismatch_kl": nan}
    (line,) = [line for _ in range(5) for line in advice.after(idle)]
    assert ("its entropy fell from 6 to 2e-17 nats per token; start a new run with a lower optimizer.lr" in line) == (
        collapsed
    )
    assert ("read the completions" in line) == (not collapsed)


@pytest.mark.parametrize(("rate", "words"), [(0.0, "easier problems"), (1.0, "harder problems")])
def test_five_steps_in_a_row_without_a_group_to_train_on(rate: float, words: str) -> None:
    advice = Advice(40)
    idle = {**FINE, "groups/used": 0.0, "reward/mean": rate, "reward/pass_rate": rate, "policy/mismatch_kl": nan}
    said = [advice.after(figures) for figures in [idle] * 4 + [FINE] + [idle] * 6]
    assert [len(lines) for lines in said] == [0] * 4 + [0] + [0] * 4 + [1, 0]
    assert words in said[9][0]


@pytest.mark.parametrize(
    ("with_signal", "words"), [(0, "no group has rewards that differ"), (3, "algorithm.mask_truncated")]
)
def test_a_step_that_learned_nothing_says_why_ever_more_rarely(with_signal: int, words: str) -> None:
    advice = Advice(40)
    said = [line for step in range(1, 201) for line in advice.without_update(step, "", with_signal)]
    assert all(words in line for line in said)
    assert [line.partition(":")[0] for line in said] == ["step 1", "step 10", "step 100"]
    assert said[-1].endswith("(100 such steps)")
    assert advice.without_update(201, "the update was not finite", 0) == ["step 201: the update was not finite"]


def test_where_an_environment_is_acted_on_nothing_is_advised_that_it_refuses() -> None:
    advice = Advice(40, turns=True)
    stuck = {**FINE, "groups/used": 0.0, "completion/truncated": 0.97}
    said = " ".join(line for _ in range(5) for line in advice.after(stuck))
    assert "with fewer turns" in said
    assert "are tools called?" in said
    assert "sampling.stop" not in said
    assert "the verifier" not in said
