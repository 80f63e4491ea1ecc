from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.records import Problem
from rl.verifiers.built_in.countdown import check, numbers_of, verify
from tests.cost import processor_time


def problem(numbers: Any = (2, 5, 7), target: str = "17") -> Problem:
    return Problem("", target, "", {"numbers": list(numbers) if isinstance(numbers, tuple) else numbers})


def reason(completion: str, of: Problem | None = None) -> str:
    verdict = verify(of or problem(), completion)
    assert verdict.reward == verdict.parts["right"] == float(verdict.reason == "right")
    assert verdict.parts["format"] == float(verdict.reason in ("right", "wrong_value", "wrong_numbers"))
    return verdict.reason


@pytest.mark.parametrize(
    ("wanted", "completions"),
    [
        (
            "right",
            [
                *(
                    "2 * 5 + 7",
                    "7+5*2",
                    "(7 + (5 * 2))",
                    " 2*5+7\n",
                    "thinking aloud\n2*5+7",
                    "-(-2)*5+7",
                    "7 - -2 * 5",
                ),
                *("<answer>2*5+7</answer>", "<answer>2+5</answer> no: <answer> 2*5+7 </answer> done", "<answer>2*5+7"),
            ],
        ),
        ("wrong_equation", ["2*5+7 = 18", "18 = 2*5+7", "2*5 = 10 + 7"]),
        ("wrong_value", ["2 + 5 + 7", "7 / 5 * 2", "(2 - 5) / 7", "2*5+7\n2+5+7"]),
        (
            "wrong_numbers",
            [
                *("17", "2.5 * 7 - .5", "2.5 + 7", "25 - 7", "2 * 5 + 7 + 0", "2 * 5", "2 * 5 + 7 * 1", "2*5+7+2-2"),
                *("2.0 * 5 + 7", "2. * 5 + 7", "10 + 7", "0", "2 * 5 + 7 - 7 + 7", "257", "17 #2*5+7", "5 * 2 + 5 + 2"),
            ],
        ),
        ("forbidden", ["2**5 - 7", "5 // 2 + 7", "7 % 5 * 2", "9**9**9", "abs(2)*5+7", "x"]),
        ("unparsable", ["2 *", "02 * 5 + 7", "2 5 7", "２*5+7"]),
        ("division_by_zero", ["2 / (5 - 5) + 7"]),
        ("too_large", ["(" * 10**5, "9" * 10**6, "2" + "*2" * 10**5]),
        ("empty", ["", " \n ", "<answer></answer>", "2*5+7 <answer>"]),
    ],
)
def test_each_hand_written_completion_gets_its_reason(wanted: str, completions: list[str]) -> None:
    got = {completion[:60]: reason(completion) for completion in completions}
    assert got == dict.fromkeys(got, wanted)


def test_a_number_that_is_given_twice_is_used_twice() -> None:
    assert reason("3 + 3", problem((3, 3), "6")) == "right"
    assert reason("3 * 2", problem((3, 3), "6")) == "wrong_numbers"
    assert reason("3", problem((3, 3), "3")) == "wrong_numbers"


@pytest.mark.parametrize("given", [[2, 5, 7], "2 5 7", "[2, 5, 7]", "2,5,7", "( 2;5 ; 7 )"])
def test_numbers_are_a_list_or_text(given: Any) -> None:
    assert numbers_of(problem(given)) == [2, 5, 7]
    assert numbers_of(Problem("", "17", "", {"nums": given})) == [2, 5, 7]


@pytest.mark.parametrize(
    ("given", "target", "says"),
    [
        ([2, 5], "seventeen", "is not a whole number"),
        ([2, 5], "1.5", "is not a whole number"),
        (None, "7", "needs a column numbers or nums"),
        ([], "7", "has 0 numbers"),
        ([1] * 17, "7", "has 17 numbers"),
        ([2, "5"], "7", "not a list of whole numbers"),
        ([2, True], "7", "not a list of whole numbers"),
        ([2, -5], "7", "not a list of whole numbers"),
        ("two 5", "7", "not a list of whole numbers"),
        ("9" * 10**4, "7", "not a list of whole numbers"),
    ],
)
def test_a_broken_problem_is_refused(given: Any, target: str, says: str) -> None:
    with pytest.raises(ValueError, match=says):
        check(problem(given, target))


@settings(max_examples=300, deadline=None, database=None)
@given(st.text() | st.text("0123456789.+-*/%() \n", max_size=600))
def test_any_text_gets_a_verdict_at_once(completion: str) -> None:
    with processor_time() as cost:
        assert reason(completion)
    assert cost.seconds < 0.05
