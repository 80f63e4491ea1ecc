from collections.abc import Callable, Iterator

import pytest

from rl.records import Problem, Verdict
from rl.verifiers.opened import Verifier, opened
from rl.verifiers.spec import VerifierSpec

pytest.importorskip("math_verify", reason="needs math-verify: install the extra 'math'")


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    found = opened(VerifierSpec("math", seconds=3.0))
    yield found
    found.close()


@pytest.fixture
def ask(verifier: Verifier) -> Callable[[str, str], Verdict]:
    return lambda target, completion: verifier.judge([Problem("", target, "")], [completion])[0]


@pytest.mark.parametrize(
    ("target", "completion", "reason"),
    [
        ("42", r"so \boxed{42}", "right"),
        ("42", r"\boxed{41} no, \boxed{42}", "right"),
        ("42", r"\boxed{x = 42}", "right"),
        (r"\frac{1}{2}", r"\boxed{0.5}", "right"),
        (r"$\frac12$", r"\boxed{\dfrac{1}{2}}", "right"),
        (r"It follows that \boxed{x^2+1}.", r"\boxed{1 + x^2}", "right"),
        ("42", r"\boxed{x=41=42}", "ambiguous"),
        ("42", r"\boxed{41=42}", "ambiguous"),
        ("42", r"\boxed{41\equiv 42}", "ambiguous"),
        ("42", r"\boxed{x=41,x=42}", "wrong_value"),
        ("42", r"\boxed{41}", "wrong_value"),
        ("42", r"\boxed{42} no, \boxed{41}", "wrong_value"),
        ("42", r"\boxed{41, 42}", "wrong_value"),
        ("42", r"\boxed{41 \text{ or } 42}", "wrong_value"),
        ("42", r"\boxed{\{41, 42\}}", "wrong_value"),
        ("42", r"\boxed{41 42}", "wrong_value"),
        ("42", "42", "no_answer"),
        ("42", r"\boxed{42", "no_answer"),
        ("42", r"\boxed{}", "unparsable"),
        ("42", " ", "empty"),
    ],
)
def test_what_is_boxed_last_counts_once(
    ask: Callable[[str, str], Verdict], target: str, completion: str, reason: str
) -> None:
    verdict = ask(target, completion)
    assert (verdict.reason, verdict.error) == (reason, "")
    assert verdict.reward == verdict.parts["right"] == float(reason == "right")
    assert verdict.parts["format"] == float(reason in ("right", "wrong_value"))


def test_a_tower_of_powers_is_killed_and_is_an_error(ask: Callable[[str, str], Verdict]) -> None:
    verdict = ask("42", r"\boxed{9^{9^{9^9}}}")
    assert (verdict.reason, verdict.reward != verdict.reward) == ("timeout", True)
    assert ask("42", r"\boxed{42}").reward == 1


def test_a_target_that_is_no_mathematics_is_an_error(ask: Callable[[str, str], Verdict]) -> None:
    assert "is no mathematics" in ask(r"\text{}", r"\boxed{42}").error
