import random
from collections.abc import Callable, Iterator

import pytest

from rl.records import Problem, Verdict
from rl.verifiers.contract import Verifier
from rl.verifiers.opened import opened
from rl.verifiers.reading.units import parts
from rl.verifiers.spec import VerifierSpec
from tests.cost import processor_time

pytest.importorskip("math_verify", reason="needs math-verify: install the extra 'math'")


@pytest.fixture(scope="module")
def verifier() -> Iterator[Verifier]:
    found = opened(VerifierSpec(name="math", seconds=3.0))
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
        ("42", r"\boxed{41 42}", "ambiguous"),
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


@pytest.mark.slow
def test_what_takes_for_ever_is_killed_and_is_an_error(ask: Callable[[str, str], Verdict]) -> None:
    verdict = ask("42", r"\boxed{\sum_{i=1}^{100}\sum_{j=1}^{2^i} \frac1j}")
    assert (verdict.reason, verdict.reward != verdict.reward) == ("timeout", True)
    assert ask("42", r"\boxed{42}").reward == 1


VAST = [
    ("2^{100}", r"\log_2 x"),
    (r"\log_2 x", "2^{100}"),
    (r"\ln x", "2^{1000}"),
    ("10^{50}", r"\log_3 x"),
    (r"\log_{10} x + y", "7^{80}"),
    (r"\{1,2\}", r"\{\log_2 x,2^{100}\}"),
    ("(1,2)", r"(\log_2 x,2^{100})"),
    (r"\begin{pmatrix}1\\2\end{pmatrix}", r"\begin{pmatrix}\log_2 x\\2^{100}\end{pmatrix}"),
    ("x=5", r"x=\log_2 y+2^{100}"),
    ("y=2x+1", r"y=\log_2 x+2^{100}"),
    ("42", "9^{9^{9^9}}"),
    ("42", "(10^9)!"),
    ("42", r"\log(9^{9^9})"),
    ("42", "9^{9^9}-9^{9^9}+42"),
    ("42", r"1^{9^{9^9}}\cdot42"),
    ("42", r"\sin(10^{10^{10}})"),
    ("42", r"\cos(e^{e^{e^{e^{10}}}})"),
    ("42", "x^{2^{100}}"),
    ("42", "2^{-10^{10}}"),
    ("42", r"(\sqrt2)^{10^9}"),
    ("42", r"|9^{9^9}|"),
    ("42", r"\lfloor 10^{10^{10}}\rfloor"),
    ("42", r"\binom{10^9}{5\cdot10^8}"),
    ("42", "(x+1)^{1000}"),
    ("42", "9" * 1500),
    ("42", r"\sum_{k=1}^{10^9} \frac1k"),
    ("42", r"x=\sum_{k=1}^{10^9} k^{20}"),
    ("42", r"\sum_{k=1}^{10^{1000}} k"),
    ("42", r"\sum_{k=1}^{9^{9^9}} k"),
    ("42", r"\prod_{k=1}^{10^9} \frac{k}{k+1}"),
    ("42", r"\sum_{i=1}^{10^5}\sum_{j=1}^{i} \frac{1}{i+j}"),
    ("(1,2)", r"(1,\sum_{k=1}^{10^9} \frac1k)"),
    ("500000000500000001", r"\sum_{k=1}^{10^9} k"),
]


@pytest.mark.slow
def test_numbers_that_nobody_can_work_out_are_wrong_values_and_no_time_outs() -> None:
    patient = opened(VerifierSpec(name="math", seconds=30))  # before, each took for ever or as good as that
    verdicts = patient.judge(
        [Problem("", target, "") for target, _ in VAST], [rf"\boxed{{{said}}}" for _, said in VAST]
    )
    got = {case: verdict.error or verdict.reason for case, verdict in zip(VAST, verdicts, strict=True)}
    assert got == dict.fromkeys(VAST, "wrong_value")


@pytest.mark.parametrize(
    ("target", "completion"),
    [
        ("9^{9^9}", r"\boxed{9^{9^9}}"),
        (r"\log_2 x", r"\boxed{\frac{\ln x}{\ln 2}}"),
        (r"\log_2(2^{100}x)", r"\boxed{100+\log_2 x}"),
        (r"2^{100}\ln x", r"\boxed{2\cdot2^{99}\ln x}"),
        ("x+1", r"\boxed{\frac{x^2-1}{x-1}}"),
        ("1", r"\boxed{\sin^2 x+\cos^2 x}"),
        ("500000000500000000", r"\boxed{\sum_{k=1}^{10^9} k}"),
        (r"\sum_{k=1}^{10^9} \frac1k", r"\boxed{\sum_{k=1}^{10^9} \frac1k}"),
        ("385", r"\boxed{\sum_{k=1}^{10} k^2}"),
        (r"\frac{n(n+1)}{2}", r"\boxed{\sum_{k=1}^n k}"),
        (r"(5\%,10\%)", r"\boxed{(5,10)}"),
        ("y=2x+1", r"\boxed{y=\frac{4x+2}{2}}"),
        ("(1,2)", r"\boxed{(\frac33,\sqrt4)}"),
    ],
)
def test_what_is_equal_differs_nowhere(ask: Callable[[str, str], Verdict], target: str, completion: str) -> None:
    assert ask(target, completion) == Verdict(1.0, "right", {"format": 1.0, "right": 1.0})


def test_a_unit_of_blanks_costs_little() -> None:
    with processor_time() as cost:
        assert not parts(" " * 1990)
    assert cost.seconds < 0.1


def test_a_target_that_is_no_mathematics_is_an_error(ask: Callable[[str, str], Verdict]) -> None:
    assert "is no mathematics" in ask(r"\text{}", r"\boxed{42}").error


TARGETS = [
    target.strip(" \n|")
    for target in r"""
0 | 1 | -1 | 2 | 42 | -42 | 420 | 1000 | 100_2 | 42_5 | 101_2 | 101_3 | 2A_{16} | \frac12 | \frac13 | -\frac13 |
\frac{13}{7} | 1\frac12 | 0.5001 | 0.\overline{3}6 | 3.14 | \frac{22}{7} | 0.333333 | \pi | 2\pi | \frac{\pi}{2} |
\frac{\pi}{3} | \pi^2 | 25\pi | e | e^2 | \ln 2 | \sqrt2 | \sqrt3 | 2\sqrt2 | \frac{\sqrt2}{2} | \frac{\sqrt3}{3} |
1+\sqrt2 | 1-\sqrt2 | \sqrt[3]{2} | 2^{10} | 3^{20} | 10! | \binom{10}{3} | i | -i | 1+i | 1-i | 3+4i | x | y | 2x
| x+1 | x-1 | x^2 | x^2+1 | x^2-1 | (x+1)^2 | (x-1)^3 | x^2+y^2 | \frac{1}{x} | \frac{x+1}{x-1} | \sqrt{x} | \sin x
| \cos x | \tan x | \log_2 x | y=2x+1 | y=2x-1 | x^2+y^2=1 | x<3 | x\le3 | x>3 | x\ge4 | (1,2) | (2,1) | (1,2,3) |
(3,4) | [1,2] | [1,2) | (1,2] | (-\infty,7) | (-\infty,5] | (4,\infty) | [3,\infty) | (-\infty,0)\cup(2,\infty) |
\{1,2\} | \{1,2,3\} | \{-1,1\} | \emptyset | 1,3 | -2,2 | \begin{pmatrix}1\\2\end{pmatrix} |
\begin{pmatrix}2\\1\end{pmatrix} | \begin{pmatrix}1&2\\3&4\end{pmatrix} | \text{Evelyn} | \text{Carla} | \text{even}
| \text{odd} | \text{(A)} | \text{(B)} | \text{ellipse} | 90^\circ | 45^\circ | \$18.90 | 12.5\%
""".replace("\n", " ").split(" | ")
]


@pytest.mark.slow
def test_each_of_many_targets_accepts_itself_and_none_of_the_others() -> None:
    patient = opened(VerifierSpec(name="math", seconds=30))
    assert len(set(TARGETS)) == len(TARGETS) > 90
    draws = random.Random(0)
    for target in TARGETS:
        others = draws.sample([other for other in TARGETS if other != target], 4)
        stated = [rf"\boxed{{{answer}}}" for answer in (target, *others)]
        verdicts = patient.judge([Problem("", target, "")] * len(stated), stated)
        got = {answer: verdict.reward for answer, verdict in zip(stated, verdicts, strict=True)}
        assert got == {stated[0]: 1, **dict.fromkeys(stated[1:], 0)}, target
