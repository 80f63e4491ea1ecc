"""Problems of the built-in environments: each has the answer that another way finds."""

import re
import sqlite3
from collections import deque
from importlib import import_module
from itertools import islice
from pathlib import Path
from statistics import mean

import pytest

from rl.arithmetic import evaluate
from rl.config import ENVIRONMENTS
from rl.environments.built_in.sqlite import same
from rl.problems.played import calculator, guess, hanoi, sqlite
from rl.records import Problem
from tests.streams import drawing, optimum

STREAMS = {name: import_module(f"rl.problems.played.{name}").stream for name in ENVIRONMENTS}


def test_every_environment_has_problems() -> None:
    assert set(STREAMS) == {file.stem for file in Path(guess.__file__).parent.glob("[a-z]*.py")}


@pytest.mark.parametrize("name", sorted(STREAMS))
def test_problems_depend_on_seed_and_step_alone(name: str) -> None:
    stream = STREAMS[name]
    assert list(islice(stream(1, 2), 10))[:5] == list(islice(stream(1, 2), 5))
    assert list(islice(stream(1, 2), 5)) != list(islice(stream(2, 2), 5)) != list(islice(stream(1, 3), 5))
    assert all(problem.source.startswith(f"{name}:1.2.") for problem in islice(stream(1, 2), 5))


@pytest.mark.parametrize("name", ["calculator", "hanoi", "sqlite"])
def test_what_is_held_out_is_not_trained_on(name: str) -> None:
    def key(problem: Problem) -> str:
        return f"{problem.prompt} {problem.extra.get('tables')}"

    draw = drawing(STREAMS[name])
    held_out = {key(problem) for problem in draw(7, 0, 50, side="held_out")}
    assert held_out.isdisjoint(key(problem) for step in range(5) for problem in draw(0, step, 50))


def test_numbers_to_guess_are_drawn_evenly_and_binary_search_is_the_optimum() -> None:
    secrets = [int(problem.target) for problem in islice(guess.stream(0, 0), 2000)]
    assert set(secrets) == set(range(1, 65))
    assert {int(problem.target) for problem in islice(guess.stream(0, 0, "held_out"), 1000)} == set(range(1, 65))

    def guesses(secret: int, low: int = 1, high: int = 64) -> int:
        middle = (low + high) // 2
        if secret == middle:
            return 1
        return 1 + (guesses(secret, low, middle - 1) if secret < middle else guesses(secret, middle + 1, high))

    assert optimum() == mean(guesses(secret) for secret in range(1, 65)) == 328 / 64
    assert optimum(1) == 1
    assert optimum(3) == 5 / 3


def test_word_problems_have_whole_answers_in_several_steps() -> None:
    problems = list(islice(calculator.stream(0, 0), 1000))
    for problem in problems:
        value = evaluate(problem.target)
        assert value.denominator == 1
        assert 0 <= value <= calculator.MOST
        assert len(re.findall(r"[-+*/]", problem.target)) >= 2
        numbers = re.findall(r"\d+", problem.target)
        assert set(numbers) == set(re.findall(r"\d+", problem.prompt)), problem
    assert len({re.sub(r"\d+", "#", problem.prompt) for problem in problems}) > 500


def test_a_reader_of_its_sentences_finds_the_same() -> None:
    """Each sentence is a change that a person reads as its pattern here says."""
    patterns = {
        r"(?:you have|start with) (\d+) \w+": lambda _, a: a,
        r"you take (\d+) more|(\d+) more are added|you get (\d+) more": lambda v, a: v + a,
        r"you give (\d+) away|(\d+) are taken away|you cut out (\d+)": lambda v, a: v - a,
        r"you have (\d+) times as many after that|the number is multiplied by (\d+)": lambda v, a: v * a,
        r"each of (\d+) others then gives you (\d+)|(\d+) times you get (\d+) more": lambda v, a, b: v + a * b,
        r"you divide them by (\d+) and have one of the \1 left|the number is divided by (\d+)": lambda v, a: v / a,
    }

    def read(text: str) -> float:
        found = 0.0
        for sentence in text.split(". ")[:-1]:
            matches = [(re.fullmatch(pattern, sentence), change) for pattern, change in patterns.items()]
            ((match, change),) = [(match, change) for match, change in matches if match and sentence]
            found = change(found, *(int(one) for one in match.groups() if one))
        return found

    assert read("you have 12 apples. you give 5 away. 4 times you get 3 more. how many apples have you now?") == 19
    stories = [p for p in islice(calculator.stream(0, 0), 500) if "each." not in p.prompt and "less." not in p.prompt]
    assert len(stories) > 200
    assert [problem for problem in stories if read(problem.prompt) != evaluate(problem.target)] == []


def test_the_tiny_tokenizer_knows_the_words() -> None:
    from rl.model.tiny import build_tokenizer

    tokenizer = build_tokenizer()
    for problem in islice(calculator.stream(0, 0), 300):
        plain = re.sub(r"\d+", "4", problem.prompt)
        ids = tokenizer(plain)["input_ids"]
        assert tokenizer.unk_token_id not in ids
        assert len(ids) <= len(plain.split()) + plain.count(".") + plain.count("?") + plain.count(",") + plain.count(
            " 4"
        )


def test_the_fewest_moves_are_those_of_a_search() -> None:
    def search(pegs: str) -> int:
        """Breadth first: how far it is to all on c."""
        seen, left = {pegs}, deque([(pegs, 0)])
        while left:
            state, moves = left.popleft()
            if set(state) == {"c"}:
                return moves
            for disk, source in enumerate(state):
                for to in "abc":
                    if to != source and source not in state[:disk] and to not in state[:disk]:
                        following = state[:disk] + to + state[disk + 1 :]
                        if following not in seen:
                            seen.add(following)
                            left.append((following, moves + 1))
        raise AssertionError

    found = {problem.extra["pegs"]: problem.target for problem in islice(hanoi.stream(0, 0), 400)}
    assert len(found) > 60
    assert {pegs: str(search(pegs)) for pegs in found} == found
    assert hanoi.fewest("aaaa") == 15


def test_the_answer_to_a_question_is_that_of_its_sql() -> None:
    kinds = set()
    for problem in islice(sqlite.stream(0, 0), 400):
        database = sqlite3.connect(":memory:")
        database.executescript(problem.extra["tables"])
        ((value,),) = database.execute(problem.extra["query"]).fetchall()
        assert same(str(value), problem.target), problem
        kinds.add(re.sub(r"[A-Z]\w+|\d+|book|cup|lamp|pen|shoe", "", problem.prompt))
    assert len(kinds) >= 8
