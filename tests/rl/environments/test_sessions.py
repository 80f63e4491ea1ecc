"""Actions are the truth, a process is a cache: what is asked twice, lost, moved and forgotten."""

import math
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from rl.environments import sessions as module
from rl.environments.episode import Episode, Outcome
from rl.environments.opened import opened
from rl.environments.sessions import Sessions
from rl.environments.spec import EnvironmentSpec
from rl.environments.turn import ToolCall, Unread
from rl.records import Problem, Verdict
from rl.verifiers.isolation.process import LoadError
from tests.rl.environments.playing import acted, begun, said, sessions_of

SECRET = """
class Secret:
    def reset(self, target, **_):
        self.target = target

    def step(self, text):
        return f"it is {self.target}"
"""
TALK = """
import os, random, time

class Talk:
    turns, seconds, memory = 20, 1.0, 128

    def reset(self, target, **_):
        self.words, self.target = [], target
        if target == "slow": time.sleep(60)
        if target == "bad": raise ValueError("a bad problem")
        return f" I am {target}."

    def step(self, text):
        self.words.append(text)
        if text == "random": return f"{random.random()} {list({'a', 'b', 'c', 'd', 'e', 'f'})}"
        if text == "time": return str(time.time())
        if text == "bye": return None
        if text == "exit": os._exit(7)
        return f"{len(self.words)} {' '.join(self.words)}"

    def get_reward(self):
        if self.target == "hangs": time.sleep(60)
        if self.target == "odd": return "much"
        self.words.append("judged")
        return len(self.words)
"""


@pytest.fixture(scope="module")
def talk() -> Iterator[Sessions]:
    sessions = sessions_of(TALK, "Talk")
    yield sessions
    sessions.end()


@pytest.fixture
def other() -> Iterator[Sessions]:
    """Those of another machine."""
    sessions = sessions_of(TALK, "Talk")
    yield sessions
    sessions.end()


def processes() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_an_episode_begins_goes_on_and_has_a_reward(talk: Sessions) -> None:
    one, two = begun(talk, ["one", "two"])
    assert (one.opening, two.opening) == (Outcome((" I am one.",)), Outcome((" I am two.",)))
    assert one.opening is not None
    assert 0 < one.opening.seconds < 60
    one, two = acted(talk, [one, two], "a", "b")
    assert said([one, two]) == ["1 a", "1 b"]
    (one,) = acted(talk, [one], Unread("no call can be read"))
    (one,) = acted(talk, [one], "bye")
    assert [outcome.observations for _, outcome in one.turns] == [("1 a",), ("error: no call can be read",), ()]
    assert (one.over, two.over) == (True, False)
    assert talk.judge([one, two]) == [Verdict(3.0, "graded"), Verdict(2.0, "graded")]


def test_what_is_asked_twice_is_done_once(talk: Sessions) -> None:
    (first,) = begun(talk, ["twice"])
    assert begun(talk, ["twice"]) == [first]
    (second,) = acted(talk, [first], "a")
    assert acted(talk, [first], "a") == [second]
    assert acted(talk, [first], "a") == [second]
    assert talk.judge([second]) == talk.judge([second]) == [Verdict(2.0, "graded")]
    assert said(acted(talk, [second], "b")) == ["2 a b"]  # what get_reward changed is not gone on from


def test_another_action_in_its_place_begins_from_the_history(talk: Sessions) -> None:
    (first,) = begun(talk, ["branch"])
    (left,), (right,) = acted(talk, [first], "left"), acted(talk, [first], "right")
    assert said([left, right]) == ["1 left", "1 right"]
    assert said(acted(talk, [left], "on")) == ["2 left on"]
    assert said(acted(talk, [right], "on")) == ["2 right on"]


def test_another_machine_goes_on_with_the_same(talk: Sessions, other: Sessions) -> None:
    (here,) = begun(talk, ["moves"])
    for text in ("a", "random", "b"):
        (here,) = acted(talk, [here], text)
    there = here
    for text in ("random", "c"):
        (here,), (there,) = acted(talk, [here], text), acted(other, [there], text)
    assert here == there
    assert said([here]) == ["5 a random b random c"]
    assert talk.judge([here]) == other.judge([there])


def test_one_whose_process_was_killed_goes_on_with_the_same(talk: Sessions, other: Sessions) -> None:
    episodes = acted(other, begun(other, ["x", "y", "z"]), "random")
    (host,) = other._hosts
    host.kill()
    again = acted(other, episodes, "a")
    assert again == acted(talk, episodes, "a")
    assert [one.alone for one in other._hosts] == [True] * 3  # each may have been what killed it


def test_what_is_not_the_same_when_it_is_done_again_is_an_error(talk: Sessions, other: Sessions) -> None:
    (episode,) = begun(talk, ["clock"])
    (episode,) = acted(talk, [episode], "a")
    (episode,) = acted(talk, [episode], "time")
    (moved,) = acted(other, [episode], "b")
    assert moved.last is not None
    assert (moved.last.reason, moved.last.observations, moved.over) == ("replay_differs", (), True)
    told, then = moved.last.error.split(" with '")[1][:10], episode.turns[-1][1].observations[0]
    assert told[:6] == then[:6]
    assert moved.last.error.startswith("talk.py: Talk answered turn 2 with '")
    assert moved.last.error.endswith("; let it depend on columns, actions and random alone (p.csv:clock)")
    (verdict,) = other.judge([moved])
    assert math.isnan(verdict.reward)
    assert (verdict.reason, verdict.error) == ("replay_differs", moved.last.error)
    assert said(acted(talk, [episode], "b")) == ["3 a time b"]  # its own process knows


def test_random_numbers_are_those_of_the_key(talk: Sessions) -> None:
    episodes = acted(talk, begun(talk, ["r1", "r2"]), "random")
    assert len(set(said(episodes))) == 2
    talk.close(["r1", "r2"])
    assert acted(talk, begun(talk, ["r1", "r2"]), "random") == episodes


def test_an_environment_that_fails_has_no_reward(talk: Sessions) -> None:
    begin = time.monotonic()
    slow, bad, hangs, odd, fine = begun(talk, ["slow", "bad", "hangs", "odd", "fine"])
    assert said([slow, bad]) == [
        "talk.py: Talk took longer than 1 s (p.csv:slow)", "talk.py:10: ValueError: a bad problem (p.csv:bad)",
    ]  # fmt: skip
    assert [one.last and one.last.reason for one in (slow, bad)] == ["timeout", "environment_error"]
    verdicts = talk.judge([slow, bad, hangs, odd, fine])
    assert [math.isnan(verdict.reward) for verdict in verdicts] == [True] * 4 + [False]
    assert [verdict.reason for verdict in verdicts[:4]] == ["timeout", "environment_error"] * 2
    assert verdicts[2].error == "talk.py: Talk took longer than 1 s (p.csv:hangs)"
    assert verdicts[3].error.startswith("talk.py: TypeError: returned 'much'; a reward is a number (p.csv:odd)")
    (left,) = acted(talk, [fine], "exit")
    assert said([left]) == ["talk.py: Talk ended its process with exit code 7 (p.csv:fine)"]
    assert said(acted(talk, [fine], "a")) == ["1 a"]
    assert time.monotonic() - begin < 30


@pytest.mark.slow
def test_more_episodes_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "HOSTS", 2)
    monkeypatch.setattr(module, "ROOM", 3)
    sessions = sessions_of(TALK, "Talk")
    names = [f"n{number}" for number in range(10)]
    episodes = begun(sessions, names)
    for turn in range(1, 4):
        episodes = acted(sessions, episodes, "a")
        assert said(episodes) == [f"{turn} {' '.join(['a'] * turn)}"] * 10
    assert len(sessions._hosts) == 2
    assert len(sessions._idle) == 6
    sessions.close(names)
    assert [len(host.episodes) for host in sessions._hosts] == [0, 0]
    sessions.end()
    assert sessions._hosts == []


def test_an_episode_of_another_problem_by_the_same_key_is_another_one() -> None:
    """As two runs with one seed have them, of which the first did not judge its own."""
    sessions = sessions_of(SECRET, "Secret")
    before, after = (Episode("0.0.0.0", Problem("what?", secret, "p.csv:1"), "s") for secret in ("a", "b"))
    for episode in (before, after, before):
        begun_now = episode.opened(*sessions.open([episode]))
        assert said(acted(sessions, [begun_now], "?")) == [f"it is {episode.problem.target}"]
    sessions.end()


def test_one_that_is_asked_twice_at_once_has_one_answer(talk: Sessions) -> None:
    (episode,) = begun(talk, ["at once"])
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: acted(talk, [episode], "a"), range(8)))
    assert found == [found[0]] * 8
    assert said(found[0]) == ["1 a"]


def test_nothing_is_left_when_it_ends() -> None:
    before = processes()
    sessions = sessions_of(TALK, "Talk")
    episodes = begun(sessions, ["one", "two"])
    assert len(processes() - before) >= 4  # a supervisor, a host and two of their own
    waiting = threading.Thread(target=acted, args=(sessions, episodes, "a"))
    waiting.start()
    waiting.join()
    sessions.end()
    assert processes() - before == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "class Bad:\n    def reset(self, **_): ...",
            "bad.py: Bad has neither a tool (a public method) nor step(self, ",
        ),
        ("class Bad:\n    pass\n1 / 0", "bad.py:3: ZeroDivisionError: division by zero"),
        ("class Bad: pass\nBad = 3", "bad.py: Bad is no class"),
        ("class Bad: pass\ndel Bad", "bad.py: has no class Bad"),
        ("class Bad:\n    turns = 3\nBad.turns = 4", "bad.py: Bad.turns is 4, but it reads as 3; write it as a number"),
        ("import os\nclass Bad: pass\nos._exit(3)", "bad.py cannot be loaded: it ended its process with exit code 3"),
    ],
)
def test_a_class_that_is_none_is_one_line(text: str, said: str) -> None:
    sessions = sessions_of(text, "Bad")
    with pytest.raises(LoadError) as raised:
        _ = sessions.interface
    assert str(raised.value).startswith(said)
    episode = Episode("k", Problem("what?", "1", "p.csv:2"))
    (outcome,) = sessions.open([episode])
    assert outcome == Outcome(reason="environment_error", error=str(raised.value))
    sessions.end()


def test_arguments_nested_too_deeply_are_an_observation() -> None:
    sessions = sessions_of(TALK, "Talk")
    (episode,) = begun(sessions, ["deep"])
    nested: list[object] = []
    for _ in range(100_000):
        nested = [nested]
    (outcome,) = sessions.act([episode], [(ToolCall("f", {"a": nested}),)])
    assert outcome == Outcome(("error: the arguments are nested too deeply",), refused=1)
    sessions.end()


def test_it_stays_open_and_what_it_prints_is_in_a_log_that_a_failure_names(tmp_path: Path) -> None:
    text = TALK.replace("self.words.append(text)", "self.words.append(text); print('heard', text)")
    spec = EnvironmentSpec(name=f"{tmp_path}/talk.py:Talk", text=text)
    sessions = opened(spec, tmp_path)
    assert opened(spec.model_copy(), tmp_path) is sessions
    assert opened(spec.model_copy(update={"text": text + "\n"}), tmp_path) is not sessions
    episodes = acted(sessions, begun(sessions, ["one"]), "hello")
    log = tmp_path / "logs" / "environment-talk.log"
    assert "heard hello" in log.read_text()
    assert said(acted(sessions, episodes, "exit"))[0].endswith(f":{log}")
    missing = spec.model_copy(update={"env": ("NO_SUCH_VARIABLE",)})
    with pytest.raises(LoadError, match=r"^environment\.env: NO_SUCH_VARIABLE is not set on "):
        _ = opened(missing, tmp_path).interface


def test_its_process_is_light() -> None:
    text = TALK.replace("self.words.append(text)", "import sys; return ' '.join(sorted(sys.modules))")
    sessions = sessions_of(text, "Talk")
    loaded = set(said(acted(sessions, begun(sessions, ["one"]), "which?"))[0].split())
    assert {name for name in loaded if name.startswith("rl.environments.")} == {
        f"rl.environments.{name}" for name in ("instance", "interface", "schema", "turn")
    }
    assert loaded.isdisjoint({"numpy", "torch", "transformers", "pydantic", "asyncio", "rl.records"})
    sessions.end()


def test_an_episode_knows_where_it_is() -> None:
    problem = Problem("what?", "3", "p.csv:2", {"size": 4})
    episode = Episode("k", problem)
    assert episode.columns == {"prompt": "what?", "target": "3", "size": 4}
    assert Episode("k", replace(problem, target="", no_target="none")).columns == {"prompt": "what?", "size": 4}
    assert (episode.over, episode.last) == (False, None)
    begun_ = episode.opened(Outcome(("hello",)))
    assert (begun_.over, begun_.last) == (False, Outcome(("hello",)))
    assert begun_.after("a", Outcome(over=True)).over
    assert begun_.after("a", Outcome(reason="timeout", error="late")).over
    assert Outcome(seconds=1.0) == Outcome(seconds=2.0)
