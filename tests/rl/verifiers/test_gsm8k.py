import json
import random
import re
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.records import Problem
from rl.verifiers.built_in.gsm8k import check, example, target_value, verify
from tests.cost import processor_time

GSM8K = Path(__file__).parents[3] / "../shared/data/gsm8k_train_1k.jsonl"


def reason(target: str, completion: str) -> str:
    verdict = verify(Problem("", target, ""), completion)
    assert verdict.reward == verdict.parts["right"] == float(verdict.reason == "right")
    assert verdict.parts["format"] == float(verdict.reason in ("right", "wrong_value"))
    return verdict.reason


@pytest.mark.parametrize(
    ("target", "completions"),
    [
        (
            "42",
            [
                *(
                    "#### 42",
                    "####42",
                    "so it is\n#### 42",
                    "#### $42",
                    "#### \\$42",
                    "#### 42.",
                    "#### 42.0",
                    "#### +42",
                ),
                *("#### 42 dollars.", "#### 42%", "#### 42\\%", "#### **42**", "#### `42`", "#### (42)", "#### 84/2"),
                *("#### 41\nno:\n#### 42", "#### 41\n\\boxed{42}", "\\boxed{41}\n#### 42", "#### \\boxed{42}"),
                *(
                    "\\boxed{42}",
                    "\\boxed{41} \\boxed{42}",
                    "$\\boxed{ 42 }$",
                    "\\boxed{42\\text{ km}^2}",
                    "#### 42 cm2",
                ),
                *("\\boxed{\\$42}", "\\boxed{\\frac{84}{2}}", "\\boxed {42}", "#### 42\nthat is all", "#### = 42"),
            ],
        ),
        ("#### 1234.5", ["#### 1,234.50", "#### $1,234.5.", "\\boxed{1{,}234.5}", "\\boxed{1\\,234.5}", "#### 2469/2"]),
        ("-3", ["#### -3", "#### −3", "#### -$3", "#### $-3", "\\boxed{-\\frac{6}{2}}"]),
        (".75", ["#### 3/4", "#### 0.75", "#### .75", "\\boxed{\\frac{3}{4}}", "\\boxed{\\dfrac34} #### 3 / 4"]),
        ("She has 2 + 2 = <<2+2=4>>4 of them.\n#### 1,000,000", ["#### 1000000", "#### 1,000,000"]),
    ],
)
def test_the_last_answer_counts_however_its_number_is_written(target: str, completions: list[str]) -> None:
    got = {completion: reason(target, completion) for completion in completions}
    assert got == dict.fromkeys(completions, "right")


HOSTILE = {
    "empty": ["", " \n"],
    "no_answer": ["42", "the answer is 42", "### 42", "\\boxed{42", "boxed{42}", "\\boxed{" * 5000, "\\boxed 42"],
    "no_number": [
        *("####", "#### ", "####\nforty-two", "#### forty-two", "\\boxed{}", "\\boxed{x}", "#### ４２"),
        *("#### 42/0", "#### 1,23", "#### 42,000,0", "#### 4,2", "#### nan", "#### inf", "#### " + "x" * 10**6),
        *("#### 0x2A", "#### ٤٢", "#### --42")[1:],
    ],
    "ambiguous": [
        *("#### 41 or 42", "#### 42 41", "\\boxed{41=42}", "\\boxed{41, 42}", "#### 40 + 2", "#### 42 million"),
        *("#### 4 2", "#### 42 (not 41)", "#### 42e1", "#### 42 > x", "#### 42.4.2", "#### 42 ٤", "#### 0x2A"),
    ],
    "too_large": ["#### " + "9" * 100, "#### " + "9" * 10**5, "#### 42." + "0" * 100, "#### 1/" + "9" * 90],
    "wrong_value": ["#### 41", "#### -42", "#### 42.0000001", "#### 42\n#### 41", "\\boxed{42} #### 41", "#### 420"],
}


@pytest.mark.parametrize("wanted", HOSTILE)
def test_each_hand_written_completion_gets_its_reason(wanted: str) -> None:
    got = {completion[:60]: reason("42", completion) for completion in HOSTILE[wanted]}
    assert got == dict.fromkeys(got, wanted)


@pytest.mark.parametrize("target", ["", "many", "#### many", "1/0", "41 or 42", "9" * 100])
def test_a_target_without_a_number_is_refused(target: str) -> None:
    with pytest.raises(ValueError, match="holds no number to compare with"):
        check(Problem("", target, ""))
    with pytest.raises(ValueError, match="holds no number"):
        verify(Problem("", target, ""), "#### 42")


@settings(max_examples=300, deadline=None, database=None)
@given(st.text() | st.text("#\\boxed{}0123456789,.$/- \n").map(lambda text: f"#### {text}"))
def test_any_text_gets_a_verdict_at_once(completion: str) -> None:
    with processor_time() as cost:
        reason("42", completion)
    assert cost.seconds < 0.05


@pytest.mark.parametrize(
    "piece", ["####", "\\boxed{", "\\boxed", "\\frac{", "{", "1,", " ", "\\text{", "$", "#### 1\n"]
)
def test_a_long_completion_costs_little(piece: str) -> None:
    with processor_time() as cost:
        verify(Problem("", "42", ""), piece * (10**6 // len(piece)))
    assert cost.seconds < 0.5


@pytest.mark.skipif(not GSM8K.exists(), reason="the real problems are not there: ../shared/data/gsm8k_train_1k.jsonl")
def test_problems_that_others_wrote() -> None:
    rows = [json.loads(line) for line in GSM8K.read_text("utf-8").splitlines()]
    chance = random.Random(0)
    for row in rows:
        # an independent reading: what stands after the hashes is an integer with commas
        stated = re.sub("[,$ ]", "", row["answer"].split("####")[-1])
        assert target_value(row["answer"]) == Fraction(stated)
        assert reason(row["answer"], row["answer"]) == "right"
        assert reason(row["answer"], f"I think \\boxed{{{stated}}}.") == "right"
        assert reason(row["answer"], f"#### {int(stated) + chance.choice([-1, 1])}") == "wrong_value"
    assert len(rows) == 1000


@pytest.mark.skipif(not GSM8K.exists(), reason="the real problems are not there: ../shared/data/gsm8k_train_1k.jsonl")
def test_the_targets_number_of_what_a_real_question_counts_is_right() -> None:
    verbs = r"did|do|does|will|would|should|could|can|are|is|was|were|has|have|had"
    noun = re.compile(rf"\bhow many (?!(?:{verbs})\b)((?:(?!(?:{verbs})\b)[A-Za-z'’-]+\s?){{1,4}})", re.IGNORECASE)
    wrongly, seen = {}, set()
    for row in map(json.loads, GSM8K.read_text("utf-8").splitlines()):
        number = row["answer"].split("####")[-1].strip()
        question = re.split(r"(?<=[.?!])\s+", row["question"])[-1]
        for counted in {found[1].strip() for found in noun.finditer(question)}:
            seen.add(counted)
            for completion in (f"#### {number} {counted}", f"\\boxed{{{number}\\text{{ {counted}}}}}"):
                verdict = verify(Problem(row["question"], row["answer"], ""), completion)
                if verdict.reward != 1:
                    wrongly[completion] = verdict.reason
    assert wrongly == {}
    assert len(seen) > 300


@pytest.mark.parametrize("target", ["86", "$1,200", "so 2 + 2\n#### 4", "3.5", "42 less", "so\n#### 3.5"])
def test_its_example_of_a_right_completion_is_right(target: str) -> None:
    problem = Problem("how many?", target, "q.jsonl:1")
    assert verify(problem, example(problem)).reward == 1
