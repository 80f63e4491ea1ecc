"""What is known of an environment before anything of it is run."""

import ast
from concurrent.futures import ThreadPoolExecutor

import pytest

from rl.config import ENVIRONMENTS
from rl.environments.spec import EnvironmentSpec, EnvironmentSpecError, EpisodeLimits, limits_of, split_name


def limits(body: str, around: str = "") -> EpisodeLimits:
    return limits_of(f"{around}\nclass Guess:\n    {body}\n", "guess.py", "Guess")


def test_limits_are_numbers_in_the_class_and_nothing_is_run() -> None:
    assert limits("pass", "raise SystemExit") == EpisodeLimits(8, 5.0, 512)
    assert limits("turns, seconds = 20, 2") == EpisodeLimits(20, 2.0, 512)
    assert limits("memory: int = 2048\n    turns = 3\n    turns = 4") == EpisodeLimits(4, 5.0, 2048)
    assert limits("turns = other = 5") == EpisodeLimits(5)
    above = "class Base:\n    turns, memory = 3, 100\nclass Guess(Base):\n    turns = 4\n"
    assert limits_of(above, "guess.py", "Guess") == EpisodeLimits(4, 5.0, 100)
    assert limits_of("class Guess(Guess):\n    turns = 4\n", "guess.py", "Guess") == EpisodeLimits(4)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("turns = 0", "environment guess.py: Guess.turns = 0: write a whole number from 1 to 1000, such as turns = 8"),
        ("turns = True", "environment guess.py: Guess.turns = True: write a whole number"),
        ("turns = 2.0", "environment guess.py: Guess.turns = 2.0: write a whole number"),
        (
            "seconds = 1 / 2",
            "environment guess.py: Guess.seconds = 1 / 2: write a number from 0.01 to 3600, such as se",
        ),
        ("memory = MEMORY", "environment guess.py: Guess.memory = MEMORY: write a whole number from 64 to 65536"),
    ],
)
def test_a_limit_that_is_no_number_says_what_to_write(body: str, said: str) -> None:
    with pytest.raises(EnvironmentSpecError) as raised:
        limits(body)
    assert str(raised.value).startswith(said)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("class Guess(\n", "environment guess.py:1: '(' was never closed"),
        ("class Other: ...", "environment guess.py: no class 'Guess' at its top level; it has Other"),
        ("if True:\n    class Guess: ...", "environment guess.py: no class 'Guess' at its top level; it has none"),
        ("(" * 5000, "environment guess.py:1: too many nested parentheses"),
    ],
)
def test_a_file_without_the_class_says_so(text: str, said: str) -> None:
    with pytest.raises(EnvironmentSpecError) as raised:
        limits_of(text, "guess.py", "Guess")
    assert str(raised.value) == said


def test_a_name_is_built_in_or_a_class_of_a_file() -> None:
    assert split_name("my/guess.py:Guess") == ("my/guess.py", "Guess")
    for name, said in (
        ("guess.py", "environment 'guess.py': name the class too, such as guess.py:Guess"),
        (
            "functions",
            f"environment 'functions' is none of {', '.join(ENVIRONMENTS)}; functions has one turn: --problems "
            "functions, alone or in mix beside an environment",
        ),
        ("guesss", f"environment 'guesss' is none of {', '.join(ENVIRONMENTS)}; did you mean guess?"),
        (
            "x:Y",
            f"environment 'x:Y' is none of {', '.join(ENVIRONMENTS)}; a class of yours is written guess.py:G",
        ),
    ):
        with pytest.raises(EnvironmentSpecError) as raised:
            split_name(name)
        assert str(raised.value).startswith(said)


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_a_built_in_one_has_its_text_class_and_limits(name: str) -> None:
    spec = EnvironmentSpec(name=name)
    assert spec.built_in
    assert f"class {spec.class_name}:" in spec.text
    assert spec.limits.memory < EpisodeLimits().memory
    assert spec == EnvironmentSpec(name=name, text="other")
    assert len({spec, EnvironmentSpec(name=name)}) == 1
    mine = EnvironmentSpec(name="my/guess.py:Guess", text="class Guess: ...")
    assert (mine.file, mine.class_name, mine.built_in, mine.limits) == ("guess.py", "Guess", False, EpisodeLimits())


def test_a_file_is_read_once_however_often_its_limits_are_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    parsed: list[str] = []
    parse = ast.parse
    monkeypatch.setattr(ast, "parse", lambda text, **how: parsed.append(text) or parse(text, **how))
    text = "class Rare:\n    turns = 7\n"
    with ThreadPoolExecutor(8) as threads:
        specs = [EnvironmentSpec(name="rare.py:Rare", text=text) for _ in range(200)]
        assert EnvironmentSpec(name="rare.py:Rare", text=text).limits.turns == 7
        assert {found.turns for found in threads.map(lambda spec: spec.limits, specs)} == {7}
    assert parsed == [text]
