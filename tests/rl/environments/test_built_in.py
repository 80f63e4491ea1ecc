"""The built-in environments, played by who knows how, in their processes; and as TRL would have them."""

import inspect
import re
from collections.abc import Callable, Iterator
from importlib import import_module
from itertools import count, islice
from typing import Any

import pytest
from transformers.utils import get_json_schema

from rl.config import ENVIRONMENTS
from rl.environments.episode import Episode, Outcome
from rl.environments.interface import interface_of
from rl.environments.opened import opened
from rl.environments.spec import EnvironmentSpec
from rl.environments.turn import Action, ToolCall
from rl.records import Problem, Verdict
from tests.streams import optimum

Policy = Callable[[Problem], Iterator[Action]]


def class_of(name: str) -> type:
    spec = EnvironmentSpec(name=name)
    found: type = vars(import_module(f"rl.environments.built_in.{name}"))[spec.class_name]
    return found


def call(name: str, /, **arguments: Any) -> tuple[ToolCall, ...]:
    return (ToolCall(name, arguments),)


def play(name: str, problem: Problem, actions: Iterator[Action]) -> tuple[Episode, Verdict]:
    """The episode in which each action is what a generator of them makes of the observations before."""
    sessions = opened(EnvironmentSpec(name=name))
    episode = Episode(problem.source, problem)
    episode = episode.opened(sessions.open([episode])[0])
    action = next(actions)
    while True:
        (outcome,) = sessions.act([episode], [action])
        episode = episode.after(action, outcome)
        if episode.over or len(episode.turns) == class_of(name).turns:  # type: ignore[attr-defined]
            return episode, sessions.judge([episode])[0]
        action = actions.send(outcome)


def search(problem: Problem) -> Iterator[Action]:
    low, high = 1, problem.extra["largest"]
    while True:
        middle = (low + high) // 2
        outcome: Outcome = yield call("guess", number=middle)
        low, high = (middle + 1, high) if outcome.observations == ("higher",) else (low, middle - 1)


def calculate(problem: Problem) -> Iterator[Action]:
    outcome: Outcome = yield call("calculate", expression=problem.target)
    yield call("answer", number=int(outcome.observations[0]))


def query(problem: Problem) -> Iterator[Action]:
    outcome: Outcome = yield call("query", sql=problem.extra["query"])
    yield call("answer", value=outcome.observations[0].split("\n")[1])


def move(problem: Problem) -> Iterator[Action]:
    def moves(pegs: list[str], to: str) -> Iterator[tuple[str, str]]:
        for disk in reversed(range(len(pegs))):
            if pegs[disk] != to:
                (way,) = set("abc") - {pegs[disk], to}
                yield from moves(below := pegs[:disk], way)
                pegs[: len(below)] = [way] * len(below)
                yield pegs[disk], to
                pegs[disk] = to
                yield from moves([way] * disk, to)
                pegs[:disk] = [to] * disk

    for source, to in moves(list(problem.extra["pegs"]), "c"):
        yield f"move from peg {source} to peg {to}"


POLICIES: dict[str, Policy] = {"guess": search, "calculator": calculate, "sqlite": query, "hanoi": move}


def test_every_environment_has_a_policy_that_knows_how() -> None:
    without = sorted({*ENVIRONMENTS} - POLICIES.keys())
    assert without == [], f"add a policy that solves {', '.join(without)} to POLICIES"


@pytest.mark.parametrize("name", POLICIES)
def test_who_knows_how_gets_the_whole_reward(name: str) -> None:
    turns = []
    for problem in islice(import_module(f"rl.problems.played.{name}").stream(0, 0), 40):
        episode, verdict = play(name, problem, POLICIES[name](problem))
        assert (episode.last and episode.last.error, verdict.error) == ("", "")
        turns.append(len(episode.turns))
        best = 1 - (turns[-1] - 1) / 20 if name == "guess" else 1
        assert verdict.reward == best, episode
        if name == "hanoi":
            assert str(turns[-1]) == problem.target
    if name == "guess":
        assert abs(sum(turns) / len(turns) / optimum() - 1) < 0.15


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_trl_takes_the_same_class(name: str) -> None:
    """What TRL 1.16 does with one: it is made without arguments, reset takes a row's columns, methods are tools."""
    cls = class_of(name)
    environment = cls()
    tools = [
        getattr(environment, method)
        for method, _ in inspect.getmembers(cls, predicate=inspect.isfunction)
        if method not in ("reset", "get_reward") and not method.startswith("_")
    ]
    (problem,) = islice(import_module(f"rl.problems.played.{name}").stream(0, 0), 1)
    for _ in range(2):  # one instance for one rollout after the other
        said = environment.reset(prompt=[], target=problem.target, another=1, **problem.extra)
        assert said is None or isinstance(said, str)
        float(environment.get_reward()) if name == "hanoi" else environment.get_reward()
    if not interface_of(cls).step:
        assert [get_json_schema(tool) for tool in tools] == list(interface_of(cls).tools)


def observations(name: str, columns: dict[str, Any], *actions: Action) -> list[str]:
    problem = Problem("?", columns.pop("target"), f"{name}:{actions}", columns)
    episode, _ = play(name, problem, _given(actions))
    return [text for _, outcome in episode.turns for text in outcome.observations]


def _given(actions: tuple[Action, ...]) -> Iterator[Action]:
    for turn in count():
        yield actions[min(turn, len(actions) - 1)]


def test_what_is_done_wrong_is_said() -> None:
    assert observations("guess", {"target": "7"}, call("guess", number=0), call("guess", number="x"))[:2] == [
        "error: the number is from 1 to 64",
        'error: guess: number: "x" is no integer',
    ]
    assert observations(
        "calculator", {"target": "42"}, call("calculate", expression="1 / 0"),
        call("calculate", expression="9 ** 9 ** 9"), call("calculate", expression="7 / 2"), call("answer", number=41.5),
    ) == ["error: division_by_zero: division by zero", "error: too_large: a result that may take more than 2048 bits",
          "7/2", "wrong"]  # fmt: skip
    assert observations("hanoi", {"target": "3", "pegs": "aa"}, "up", "b c", "a to c", "a c", "a b", "c b")[:6] == [
        "error: write a move such as a c", "error: there is nothing to move from b to c", "a: 2, b: -, c: 1",
        "error: disk 2 is larger than disk 1", "a: -, b: 2, c: 1", "a: -, b: 2 1, c: -",
    ]  # fmt: skip


TABLES = "create table t (a integer, b text);\ninsert into t values (1, 'x'), (2, null);"


@pytest.mark.parametrize(
    ("sql", "said"),
    [
        ("select * from t", "a | b\n1 | x\n2 | null"),
        ("with s as (select max(a) m from t) select m from s", "m\n2"),
        ("select a from t where a > 5", "no rows"),
        ("with recursive c(n) as (select 1 union all select n + 1 from c limit 30) select n from c", "more rows"),
        ("with recursive c(n) as (select 1 union all select n + 1 from c) select max(n) from c", "the query takes too"),
        ("insert into t values (3, 'y')", "error: not authorized"),
        ("delete from t", "error: not authorized"),
        ("drop table t", "error: not authorized"),
        ("create table u (a)", "error: not authorized"),
        ("attach 'x.db' as x", "error: not authorized"),
        ("pragma journal_mode", "error: not authorized"),
        ("select random()", "error: not authorized to use function: random"),
        ("select datetime('now')", "error: not authorized to use function: datetime"),
        ("select load_extension('x')", "error: not authorized"),
        ("select zeroblob(1000000000)", "error: string or blob too big"),
        ("select 1; drop table t", "error: You can only execute one statement at a time."),
        ("select missing from t", "error: no such column: missing"),
    ],
)
def test_a_query_reads_within_bounds(sql: str, said: str) -> None:
    environment = class_of("sqlite")()
    assert environment.reset(target="1", tables=TABLES) == "\nCREATE TABLE t (a integer, b text)"
    try:
        found = environment.query(sql)
    except ValueError as error:
        found = f"error: {error}"
    assert said in found
    assert environment.query("select count(*) from t") == "count(*)\n2"


def test_an_answer_is_compared_as_what_it_is() -> None:
    for target, answer, right in (
        ("42", "42.0", True), ("42", 42, True), ("42", "43", False), ("Ada", " ada ", True), ("Ada", "Adam", False),
        ("1", "one", False),
    ):  # fmt: skip
        environment = class_of("sqlite")()
        environment.reset(target=target, tables=TABLES)
        assert environment.answer(answer) == ("right" if right else "wrong")
        assert environment.get_reward()[0] == right


def test_rewards_of_what_is_not_finished() -> None:
    for name, columns in (
        ("guess", {"target": "7"}), ("calculator", {"target": "1"}), ("hanoi", {"target": "1", "pegs": "a"}),
        ("sqlite", {"target": "1", "tables": TABLES}),
    ):  # fmt: skip
        environment = class_of(name)()
        environment.reset(**columns)
        reward = environment.get_reward()
        assert reward in (0.0, (0.0, "no_answer"), {"found": 0, "guesses": 0})
    with pytest.raises(ValueError, match=re.escape("pegs are 'abd'; write a, b or c for each of 1 to 8 disks")):
        class_of("hanoi")().reset(target="1", pegs="abd")
