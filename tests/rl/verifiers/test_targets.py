"""Targets of `math` as files hold them, and what is refused before anything starts."""

import pytest

from rl.judging import TRIED, first, warm
from rl.problems.rows import Columns, read
from rl.problems.tables import ProblemError, Row, Table
from rl.records import Problem
from rl.verifiers.reading.targets import asked, check, counted
from rl.verifiers.spec import VerifierError, VerifierSpec


@pytest.mark.parametrize(
    "target",
    [
        "The answer is 5",
        "Robert went to the market and bought 5 apples.",
        "x is 5",
        "Two plus two makes four, so the answer has to be four.",
        "####",
        r"\boxed{}",
    ],
)
def test_sentences_are_refused_when_they_are_read(target: str) -> None:
    with pytest.raises(ValueError, match=r"write the value alone, in \\boxed\{\} or behind ####"):
        check(Problem("", target, ""))


@pytest.mark.parametrize(
    "target",
    [
        "all real numbers except 3",
        "x=1 or x=2",
        r"\text{The answer is }5",
        r"\frac{1}{2} \text{ if } x \text{ is even}",
        "There are no real solutions",
        "2abc + 3abd - acd",
        "sin(x) + cos(x)",
        "50 miles per hour",
        "72 red balls left over",
        "infinitely many solutions",
        r"\begin{cases} 1 & \text{x is 5} \end{cases}",
        r"\operatorname{lcm}(4,6)=12",
        "Let $x=5$. Then the answer is \\boxed{5}.",
        "She has 24 clips in May, and then she has 72 of them.\n#### 72",
    ],
)
def test_mathematics_with_words_and_worked_solutions_are_read(target: str) -> None:
    check(Problem("", target, ""))


def test_the_refusal_is_one_line_that_names_the_row() -> None:
    rows = [
        Row(number, {"question": "q?", "answer": answer}) for number, answer in enumerate(["5", "It is 5, she says"])
    ]
    with pytest.raises(ProblemError) as refused:
        read(
            Table("p.jsonl", "line", ["question", "answer"], rows), Columns(), VerifierSpec(name="math").declared.check
        )
    assert "answer 'It is 5, she says' is a sentence" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_box_goes_before_hashes_and_the_last_hashes_count() -> None:
    assert asked("1\n#### 2\nno:\n#### 72 \n") == "72"
    assert asked(r"so \boxed{5}." + "\n#### 6") == "5"
    assert asked(r"\frac12") == r"\frac12"


def test_only_a_number_with_words_behind_it_is_counted() -> None:
    assert counted("3 1/2 hours") == ("3 1/2", "hours")
    assert [
        text for text in ("72", "12 or 13", "2 sinx", "2 xyz", "3 dozen", "5 less", "2 ABCD") if counted(text)
    ] == []


def test_a_set_of_targets_that_are_wrong_as_answers_to_themselves_is_refused() -> None:
    pytest.importorskip("math_verify", reason="needs math-verify: install the extra 'math'")
    verifiers = {"p": VerifierSpec(name="math", seconds=30)}
    good = [
        Problem("", target, f"p:{row}", set="p") for row, target in enumerate(["72 apples", r"\frac12", "x\n#### 7"])
    ]
    assert len(warm(verifiers, good)) == 1
    with pytest.raises(
        VerifierError, match=r"^p:9: verifier 'math' finds the target 'x>5 or not' wrong .*for math in LaTeX"
    ):
        warm(verifiers, [*good, Problem("", "x>5 or not", "p:9", set="p")])


def test_a_few_of_each_set_are_tried() -> None:
    many = [Problem("", str(at), "", set="ab"[at % 2]) for at in range(40)]
    assert [problem.target for problem in first(many)] == [
        str(at) for at in (*range(0, 2 * TRIED, 2), *range(1, 2 * TRIED, 2))
    ]
