import re
from collections.abc import Callable
from fractions import Fraction
from itertools import islice

import pytest

from rl.arithmetic import MAX_CHARACTERS, evaluate
from rl.grammar import LARGEST, draw, stream
from rl.records import Problem


@pytest.fixture(scope="module")
def many() -> list[Problem]:
    return draw(0, 0, 6000)


# A wording as a pattern over its numbers, and what it asks for.
MEANINGS: dict[str, Callable[..., Fraction | int]] = {
    r"add N and N\.": lambda a, b: a + b,
    r"sum N, N, and N\.": lambda a, b, c: a + b + c,
    r"subtract N from N\.": lambda a, b: b - a,
    r"take N away from N\.": lambda a, b: b - a,
    r"take N minus N\.": lambda a, b: a - b,
    r"decrease N by N\.": lambda a, b: a - b,
    r"find the difference of N and N\.": lambda a, b: a - b,
    r"multiply N by N\.": lambda a, b: a * b,
    r"take N times N\.": lambda a, b: a * b,
    r"\S+ N plus N times N[.?]": lambda a, b, c: a + b * c,
    r"what is N plus N times N\?": lambda a, b, c: a + b * c,
    r"what is the sum of N and N, times N\?": lambda a, b, c: (a + b) * c,
    r"compute the product of N and N, minus N\.": lambda a, b, c: a * b - c,
    r"add N and N, then multiply (?:that|it|the result|that sum|the sum) by N\.": lambda a, b, c: (a + b) * c,
    r"add N and N, then subtract N\.": lambda a, b, c: a + b - c,
    r"multiply N by N, then subtract (?:that|it|the result|that product|the product) from N\.": (
        lambda a, b, c: c - a * b
    ),
    r"take N minus N, then take N minus (?:that|it|the result|that difference|the difference)\.": (
        lambda a, b, c: c - (a - b)
    ),
    r"add N and N, then multiply by the sum of N and N\.": lambda a, b, c, d: (a + b) * (c + d),
    r"(?:add|sum) N and N, (?:then )?(?:add|sum) N and N, (?:and )?(?:then )?multiply the (?:two )?(?:results|sums)\.": (
        lambda a, b, c, d: (a + b) * (c + d)
    ),
    r"add N and N, (?:then )?subtract N from N, (?:and )?(?:then )?subtract the second from the first\.": (
        lambda a, b, c, d: (a + b) - (d - c)
    ),
}


@pytest.mark.parametrize("pattern", MEANINGS)
def test_the_target_is_what_the_wording_asks_for(pattern: str) -> None:
    wanted = re.compile(pattern.replace("N", r"(\d+)"))
    found = 0
    for problem in islice(stream(1, 0), 20000):
        if match := wanted.fullmatch(problem.prompt):
            assert evaluate(problem.target) == MEANINGS[pattern](*map(int, match.groups())), problem
            found += 1
            if found == 3:
                break
    assert found


def test_problems_are_a_function_of_seed_and_step() -> None:
    assert draw(5, 7, 50) == draw(5, 7, 50)
    prompts = [{problem.prompt for problem in draw(seed, step, 50)} for seed, step in ((5, 7), (5, 8), (6, 7))]
    assert len(set.union(*prompts)) > 120  # a few short ones may coincide


def test_skip_continues_the_same_stream() -> None:
    assert draw(5, 7, 12) + draw(5, 7, 18, skip=12) == draw(5, 7, 30)


def test_train_and_held_out_share_no_prompt_whatever_the_seeds(many: list[Problem]) -> None:
    held_out = {problem.prompt for seed in range(3) for problem in draw(seed, 0, 300, side="held_out")}
    train = {problem.prompt for problem in many} | {problem.prompt for problem in draw(1, 3, 2000)}
    assert len(held_out) > 500
    assert not train & held_out


def test_every_target_can_be_evaluated_and_uses_the_numbers_of_its_prompt(many: list[Problem]) -> None:
    for problem in many:
        evaluate(problem.target)
        numbers = sorted(map(int, re.findall(r"\d+", problem.prompt)))
        assert numbers == sorted(map(int, re.findall(r"\d+", problem.target)))
        assert 1 <= numbers[0] <= numbers[-1] <= LARGEST
        assert len(problem.target) < MAX_CHARACTERS


def test_the_grammar_is_broad(many: list[Problem]) -> None:
    wordings = {re.sub(r"\d+", "N", problem.prompt) for problem in many}
    shapes = {re.sub(r"\d+", "N", problem.target) for problem in many}
    assert len(wordings) > 3000
    assert len(shapes) > 150
    assert {sign for problem in many for sign in problem.target if not sign.isdigit()} == set("+-*() ")


def test_sources_tell_problems_apart(many: list[Problem]) -> None:
    assert len({problem.source for problem in many}) == len(many)
