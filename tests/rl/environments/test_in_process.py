"""Built-in environments in the process that asks: as in a process of their own."""

import random
from collections.abc import Iterator
from dataclasses import replace
from itertools import islice

import pytest

from rl.config import ENVIRONMENTS
from rl.environments.episode import Episode
from rl.environments.in_process import InProcess, plays_in_process
from rl.environments.opened import close, opened
from rl.environments.sessions import Sessions
from rl.environments.spec import EnvironmentSpec
from rl.environments.turn import Action, ToolCall, Unread
from rl.problems.made import stream_of

ACTIONS: dict[str, list[Action]] = {
    "calculator": [
        (ToolCall("calculate", {"expression": "3 + 4 * 2"}),),
        (ToolCall("calculate", {"expression": "3 +"}), ToolCall("calculate", {"expression": "9 ** 9 ** 9"})),
        (ToolCall("calculate", {"expression": 3}), ToolCall("add", {"a": 1})),
        Unread("nothing that is read"),
        (ToolCall("answer", {"number": float("1e300")}), ToolCall("calculate", {"expression": "1"})),
        "the answer is 3",
    ],
    "guess": [
        (ToolCall("guess", {"number": 32}),),
        (ToolCall("guess", {"number": 0}), ToolCall("guess", {"number": 64})),
        (ToolCall("guess", {"number": "3"}),),
        (ToolCall("guess", {}),),
        tuple(ToolCall("guess", {"number": number}) for number in range(1, 20)),
    ],
    "hanoi": ["a c", "a b", "b c", "c to a", "nothing", "", "a a", Unread("x")],
}


@pytest.fixture(scope="module", params=ACTIONS)
def both(request: pytest.FixtureRequest) -> Iterator[tuple[str, InProcess, Sessions]]:
    spec = EnvironmentSpec(name=request.param)
    here, apart = opened(spec), Sessions(spec, size=1)
    assert isinstance(here, InProcess)
    yield request.param, here, apart
    close(spec)
    apart.end()


def test_episodes_are_those_of_a_process_of_their_own(both: tuple[str, InProcess, Sessions]) -> None:
    name, here, apart = both
    assert here.interface == apart.interface
    draw = random.Random(0)
    for number, problem in enumerate(islice(stream_of(name)(0, 0, "train"), 12)):
        episode = Episode(str(number), problem, "seed")
        first, other = here.open([episode])[0], apart.open([episode])[0]
        assert first == other
        episode = episode.opened(first)
        while not episode.over and len(episode.turns) < 6:
            action = draw.choice(ACTIONS[name])
            first, other = here.act([episode], [action])[0], apart.act([episode], [action])[0]
            assert first == other
            assert here.act([episode], [action]) == [first]  # asked twice, done once
            episode = episode.after(action, first)
        assert here.judge([episode]) == apart.judge([episode])
        apart.close([episode.key])


def test_columns_of_others_are_an_error_that_says_where(both: tuple[str, InProcess, Sessions]) -> None:
    name, here, apart = both
    (problem,) = islice(stream_of(name)(0, 0, "train"), 1)
    episode = Episode("broken", replace(problem, target="no number", extra={}))
    first, other = here.open([episode])[0], apart.open([episode])[0]
    assert first.reason == other.reason == "environment_error"
    assert first.error.startswith(f"{name}.py") or name == "hanoi"
    assert problem.source in first.error
    assert here.judge([episode.opened(first)])[0].error == first.error


def test_arguments_that_are_nested_too_deeply_are_the_policys_fault(both: tuple[str, InProcess, Sessions]) -> None:
    name, here, _ = both
    if name == "hanoi":
        pytest.skip("it has no tools")
    deep: list[object] = []
    for _ in range(100_000):
        deep = [deep]
    (problem,) = islice(stream_of(name)(0, 0, "train"), 1)
    episode = Episode("deep", problem)
    episode = episode.opened(here.open([episode])[0])
    tool = here.interface.tools[0]["function"]["name"]
    (outcome,) = here.act([episode], [(ToolCall(tool, {"number": deep}),)])
    assert outcome.refused == 1
    assert not outcome.error


def test_random_numbers_of_the_process_stay_its_own(both: tuple[str, InProcess, Sessions]) -> None:
    name, here, _ = both
    random.seed(1)
    before = random.getstate()
    (problem,) = islice(stream_of(name)(0, 0, "train"), 1)
    here.open([Episode("x", problem)])
    assert random.getstate() == before


def test_each_that_says_so_is_played_in_the_process() -> None:
    those = {name for name in ENVIRONMENTS if plays_in_process(EnvironmentSpec(name=name))}
    assert sorted(those - ACTIONS.keys()) == [], "add actions of it to ACTIONS"
    assert those == ACTIONS.keys()


def test_what_runs_a_policys_program_has_a_process_of_its_own() -> None:
    assert not plays_in_process(EnvironmentSpec(name="sqlite"))
    assert not plays_in_process(EnvironmentSpec(name="guess.py:Guess", text="class Guess:\n    in_process = True"))
