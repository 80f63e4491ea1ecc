"""Sums judged: whatever a completion says gets a verdict, soon."""

import random
import re
import subprocess
import sys
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.arithmetic import MAX_CHARACTERS, Unfit
from rl.records import Problem, Verdict
from rl.verifiers.built_in import arithmetic
from tests.cost import processor_time

REASONS = {"right", "wrong_value", "wrong_equation", *get_args(Unfit)}


def verify(target: str, completion: str) -> Verdict:
    return arithmetic.verify(Problem("", target, ""), completion)


def listed(block: str) -> list[str]:
    """Completions written with three blanks or a new line between them."""
    return [completion for completion in re.split(r" {3,}|\n", block.strip("\n ")) if completion]


# What a model, or somebody teasing the verifier, might write, by the reason it has to get against the target 42.
HOSTILE = {
    "empty": ["", " ", "\n", " \t\r\n ", "\x0b\x0c", "\u2003", "<answer>", "42 <answer></answer>"],
    "unparsable": [
        *listed("""
            1 +   +   -   ()(   )(   (1   1)   1 2   1..2   1.2.3   .   1 . 5   * 2   2 * * 3   2 *** 3   2 /// 3   1 (
            007   00001   (*1)   (**1)   (1)1   %   %%   (()   4 2   4-   42 -   40 + 2 *   1 -/ 1   2 ** ** 2   (
            ４２   ٤٢   ४२   4²   ½   Ⅷ   ٤2   𝟒𝟐   é   🤖   𝓮val(1)   ｅｘｉｔ()   naïve
            四十二
        """),
        *("(" * 60, ")" * 60, "-" * 60, "1(" * 60, "(" * 64 + "1 1" + ")" * 64, "(-" * 64 + "+" + ")" * 64),
        *("\0", "42\0", "4\0" + "2", "\x01", "\x1b[31m42", "42\n42", "40 +\n2", "4\r2", "(\n42)", "42\n# a note"),
        *("4\x7f2", "4\u00a02", "4\u200b2", "\ufeff42", "\ud800", "\u202e24", "4\u0660", "4\u20282", "42\udc80"),
    ],
    "forbidden": [
        *listed(r"""
            __import__('os').system('true')   ().__class__.__bases__[0].__subclasses__()   (42).real   eval('42')
            exec('')   exit()   open('/etc/passwd').read()   breakpoint()   input()   print('a')
            print(42, 1)   int('42')   abs(-42)
            lambda: 42   (lambda: 42)()   (lambda f: f(f))(lambda f: f(f))   (x := 42)   x := 42
            range(10**9)
            f'{42}'   f"{6*7}"   '42   "4" * 10   'a' * 10**10   b'42'   [42][0]   {42}   {}   {4: 2}   42,
            4, 2
            [x for x in (1,)]   True   None   ...x   42j   1j**2   True + 41   not 1   ~-43   1 if 1 else 0
            1if 2 else 3
            1 and 42   0 or 42   1e999   1E5   1e-999   4.2e1   1_000   0x2A   0b101010   0o52   0xg   inf   nan
            1 < 2
            42 != 42   42 != 0   1 << 10**9   5 @ 5   5 & 3   5 | 3   5 ^ 3   8 >> 1   await x   yield   import os
            del x
            x   _   pi   42!   #42   42; 43
            42?
            <b>42</b>   {{7*7}}   ${7*7}   %s   %(x)s   1__0   1 is 1   *a, b   **k   \u0034   4\   "   ''
            ()   1()   1(2)   (1)(2)   ()()   1(2)(3)   () + 1   -()   1 + () * 2   1.5(2)   1(2)**2   2**()   1()()()
            2 ** 0.5   2 ** (1/2)   (-8) ** (1/3)   0 ** 0.5   0 ** -0.5   4 ** (1/3 + 1/7)   2 ** -.5   1 ** .1
        """),
        *("a" * 500, "(" * 200 + "x", "x" + ")" * 200, "'" * 300, "(" * 60 + ")" * 60, "1" + "()" * 200, "{" * 400),
    ],
    "too_large": [
        *listed("""
            9**9**9   9**9**9**9   2**2**2**2**2**2   10**10**10   (9**9)**(9**9)   9**-9**9   2**99999999   2**-4096
            2**4096   (1/3)**4000   (1/3)**-4000   (-2)**99999   0.1**9999   7**(10**100)   1.0000001**999999
            (9**500)*(9**500)   (2**1000)*(2**1000)*(2**1000)   1/(9**500)/(9**500)   (9**500 + 1/3) % (1/9**500)
            9**500 // (1/9**500)   1/9**400 + 1/7**400   9**600/0   (9**9**9)/0   0*9**9**9   9**9**9 - 9**9**9
        """),
        *("9" + "**9" * 100, "9" * 200, "1" + "0" * 400, "0." + "1" * 300, "." + "3" * 200, "0" * 300, "9" * 10**6),
        *("9" * 5000 + "**2", "(" * 10**5, "(" * 10**5 + "1" + ")" * 10**5, "-" * 10**5 + "1", "-" * 300 + "1"),
        *("- " * 200 + "1", "+-" * 200 + "1", "(" * 100 + "1" + ")" * 100, "(-" * 65 + "1" + ")" * 65),
        *("1" + "+1" * 10**5, "2" + "*2" * 10**5, " 1 " * 10**5, "x" * 10**7, "\0" * 1000, "[" * 10**5, "é" * 10**6),
        *("__import__('os')" * 10**4, "9**99" + "*9**99" * 60, "2" + "**2" * 160, "lambda:" * 10**5, "f'{" * 10**5),
    ],
    "division_by_zero": listed("""
        1/0   1//0   1%0   0/0   0**-1   1/(1-1)   1/0.0   1%(0*5)   5//(2-2)   (3-3)**-2   1/(0**5)   1/-0   0.0**-3
        9**300/0   1/(1//2)   1 % (1 % 1)   1/00   (1/0)*0   0 % 0   1/.0   1/0.   2**(1/0)   42 + 1/0 - 1/0   0**-9**99
    """),
    "wrong_value": [
        *listed("""
            41   0   -42   43 - 2   42.0000001   1/3   2**10   1+1   1**99999999999999999999   (-1)**(10**100+1)   0**0
            0**(9**99)   5 % -3   -7 // 2   -2**2   2**-1   .5   1.   00   007.5   - - 3   1--1   1-+-+-1   4−2
            41.9999999999999
        """),
        *("1" + "+1" * 255, "-" * 64 + "1", "(" * 64 + "1" + ")" * 64, "1-1" * 100, "2" + "/3" * 200, "7" + "%5" * 200),
        *("1" + "**1" * 170, "0" + "/1" * 200, "9" * 128, "2" + "**-1" * 60 + "**0", "(1+" * 60 + "1" + ")" * 60),
    ],
    "right": [
        *listed(r"""
            42   +42   --42   42.   42.0   (42)   6*7   84/2   40 + 2   126 / 3   0.42 * 100   85 // 2   142 % 100
            6.0*7
            (((42)))   2**5 + 10   4200 / 10**2   21 / 2**-1   42 * 1**999999999   1/3 + 1/3 + 124/3   42 + 0**5
            6×7   84÷2   [42]   x = 42   $42   \boxed{42}   `42`   “42”   '42'   "6*7"
            print(42)   print(6 * 7)   42;   <answer>42</answer>
        """),
        *("the answer is 42", " 42 ", "42\n", "\t42", "40\t+ 2", "42" + " " * 10**5, "42\u2028"),
    ],
}


def cost_and_reason(completion: str) -> tuple[float, str]:
    """Processor seconds and the reason."""
    with processor_time() as cost:
        verdict = verify("42", completion)
    assert verdict.reason in REASONS
    assert verdict.reward == (1.0 if verdict.reason == "right" else 0.0)
    return cost.seconds, verdict.reason


@pytest.mark.parametrize("reason", HOSTILE)
def test_each_hand_written_completion_gets_its_reason(reason: str) -> None:
    got = {completion[:80]: cost_and_reason(completion)[1] for completion in HOSTILE[reason]}
    assert got == dict.fromkeys(got, reason)


def test_ten_thousand_hostile_completions_each_cost_less_than_50_ms() -> None:
    chance = random.Random(20260)
    seeds = [completion for completions in HOSTILE.values() for completion in completions if len(completion) < 2000]
    pieces = [
        "(",
        ")",
        "**",
        "9",
        "-",
        "/",
        "//",
        "%",
        ".",
        " ",
        "0",
        "1(",
        "**-",
        "99999",
        "x",
        "\0",
        "²",
        "(-",
        "9**9",
    ]
    completions = {completion for group in HOSTILE.values() for completion in group}
    while len(completions) < 10_000:
        grown = chance.choice(seeds)
        for _ in range(chance.randint(1, 4)):
            at, until = sorted(chance.choices(range(len(grown) + 1), k=2))
            grown = chance.choice(
                [
                    grown[:at] + chance.choice(pieces) * chance.choice([1, 1, 2, 30, 90]) + grown[at:],
                    grown[:at] + chance.choice(seeds) + grown[until:],
                    grown[:at] + grown[until:],
                    grown[at:until] * chance.randint(1, 9),
                ]
            )
        completions.add(grown[: chance.choice([40, 400, MAX_CHARACTERS, 2000])])
    costs = {completion: cost_and_reason(completion)[0] for completion in sorted(completions)}
    slowest = max(costs, key=lambda completion: costs[completion])
    assert costs[slowest] <= 0.05, slowest[:200]


@pytest.mark.slow
@settings(max_examples=600, deadline=None, database=None)
@given(st.lists(st.text() | st.text("0123456789.+-*/%() ", max_size=MAX_CHARACTERS), min_size=5, max_size=10))
def test_any_text_gets_a_verdict_within_50_ms(completions: list[str]) -> None:
    for completion in completions:
        assert cost_and_reason(completion)[0] <= 0.05


@pytest.mark.parametrize(
    "text",
    [
        "(9**290+1/7**290)" + "%(1/11)" * 70,
        "(2**900+1)/(3**500+2)" + "%97" * 160,
        "(1/3**600)" + "+1" * 240,
        "9**300" + "*1" * 250,
        "-" * 60 + "(" * 60 + "2**-2" + "*3**-1" * 53 + ")" * 60,
    ],
)
def test_the_most_work_that_the_bounds_allow_is_within_50_ms(text: str) -> None:
    assert MAX_CHARACTERS * 0.9 < len(text) <= MAX_CHARACTERS
    cost, reason = cost_and_reason(text)
    assert cost <= 0.05
    assert reason == "wrong_value"  # so none of it was refused


@pytest.mark.filterwarnings("error")
def test_no_completion_makes_the_parser_warn() -> None:
    for completions in HOSTILE.values():
        for completion in completions:
            verify("42", completion)


@pytest.mark.parametrize("target", ["", "1/0", "x", "9**9**9", "forty-two"])
def test_a_target_without_a_value_is_an_error_and_never_a_reward(target: str) -> None:
    with pytest.raises(ValueError, match=r"the target .* cannot be evaluated") as error:
        verify(target, target)
    assert "\n" not in str(error.value)


def test_a_verifier_s_worker_need_not_load_torch() -> None:
    program = "import rl.verifiers.built_in.arithmetic, sys; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False, timeout=60).returncode == 0
