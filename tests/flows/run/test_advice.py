from math import nan

import pytest

from flows.run.advice import Advice, why_nothing

FINE = {
    "groups/used": 8.0,
    "completion/truncated": 0.2,
    "reward/mean": 0.4,
    "reward/pass_rate": 0.4,
    "policy/mismatch_kl": 0.001,
}


def test_a_run_that_goes_well_gets_none() -> None:
    advice = Advice(40)
    assert [advice.after({**FINE, "policy/mismatch_kl": mismatch}) for mismatch in (0.001, nan, 0.09)] == [[], [], []]


@pytest.mark.parametrize(
    ("figures", "words"),
    [
        ({"completion/truncated": 0.97}, "97% of the completions were cut at sampling.max_tokens 40"),
        ({"policy/mismatch_kl": 0.3}, "lower staleness or optimizer.lr"),
    ],
)
def test_each_is_said_once(figures: dict[str, float], words: str) -> None:
    advice = Advice(40)
    [line] = advice.after(FINE | figures)
    assert words in line
    assert "\n" not in line
    assert advice.after(FINE | figures) == []


@pytest.mark.parametrize(("rate", "words"), [(0.0, "easier problems"), (1.0, "harder problems")])
def test_five_steps_in_a_row_without_a_group_to_train_on(rate: float, words: str) -> None:
    advice = Advice(40)
    idle = {**FINE, "groups/used": 0.0, "reward/mean": rate, "reward/pass_rate": rate, "policy/mismatch_kl": nan}
    said = [advice.after(figures) for figures in [idle] * 4 + [FINE] + [idle] * 6]
    assert [len(lines) for lines in said] == [0] * 4 + [0] + [0] * 4 + [1, 0]
    assert words in said[9][0]


@pytest.mark.parametrize(
    ("with_signal", "words"), [(0, "no group has rewards that differ"), (3, "loss.mask_truncated")]
)
def test_a_step_without_an_update_says_why(with_signal: int, words: str) -> None:
    assert words in why_nothing(with_signal)
