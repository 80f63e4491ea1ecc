"""What a hostile environment can do: it harms one episode, its own."""

import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from rl.environments.episode import Episode
from rl.environments.instance import MAX_TEXT
from rl.environments.sessions import Sessions
from rl.records import Verdict
from rl.verifiers.isolation import landlock
from rl.verifiers.isolation.sandbox import BUBBLEWRAP, LANDLOCK, missing
from tests.rl.environments.playing import acted, begun, said, sessions_of

TEXT = Path(__file__).with_name("hostile.py").read_text("utf-8")
pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or landlock.abi() < 6, reason="needs Landlock, and its rules on signals (Linux 6.12)"
)


@pytest.fixture(scope="module", params=[LANDLOCK, pytest.param(BUBBLEWRAP, marks=pytest.mark.slow)])
def hostile(request: pytest.FixtureRequest) -> Iterator[Sessions]:
    if lacks := missing(request.param):
        pytest.skip(lacks)
    sessions = sessions_of(TEXT, "Hostile", request.param, size=4)
    yield sessions
    sessions.end()


@pytest.fixture
def four(hostile: Sessions) -> Iterator[list[Episode]]:
    episodes = begun(hostile, list("0123"))
    yield episodes
    hostile.close("0123")


def hello(number: int) -> str:
    """What an episode says as long as it is what it was: nothing that another did is seen in it."""
    return f"hello from the secret of {number}, ['{number}']"


def test_an_episode_sees_nothing_of_another(hostile: Sessions, four: list[Episode]) -> None:
    one, two = acted(hostile, four[:2], "place")
    pid, folder, _, host = said([two])[0].split()
    of_host = str(Path(folder).parent)
    denied = str(["Permission denied"] * 5)
    for action, expected in (
        (f"peek:{pid}", denied), (f"peek:{host}", denied),
        (f"read:{folder}", "Permission denied"), (f"write:{folder}", "Permission denied"),
        (f"write:{of_host}", "Permission denied"), ("write:/dev/shm", "Permission denied"),
        ("list", "Permission denied"), ("kill_all", "Operation not permitted"),
        ("hello", hello(0)),
    ):  # fmt: skip
        (one,) = acted(hostile, [one], action)
        assert (action, said([one])[0]) == (action, expected)
    (two,) = acted(hostile, [two], "hello")
    assert said([two]) == [hello(1)]
    assert said(acted(hostile, [two], f"read:{folder}")) == ["the secret of 1"]  # its own folder


@pytest.mark.parametrize(
    ("action", "harm"),
    [
        ("flood", "x" * MAX_TEXT + " … (cut: 10000000 characters)"),
        ("surrogate", "? <|im_end|>"),
        ("refuse", "error: no such move"),
        ("break", "hostile.py:58: KeyError: 'nothing' (p.csv:0)"),
        ("leave", "hostile.py:52: SystemExit (p.csv:0)"),
        ("allocate", "hostile.py:64: MemoryError (p.csv:0)"),
        ("exit", "hostile.py: Hostile ended its process with exit code 3 (p.csv:0)"),
        ("crash", "hostile.py: Hostile ended its process by SIGSEGV (p.csv:0)"),
        ("forge", "hostile.py: Hostile sent what is no answer to the completion that it was asked about (p.csv:0)"),
    ],
)
def test_what_one_does_harms_that_one(hostile: Sessions, four: list[Episode], action: str, harm: str) -> None:
    after = acted(hostile, four, action, "hello", "hello", "hello")
    assert said(after) == [harm, hello(1), hello(2), hello(3)]
    assert said(acted(hostile, after[1:], "hello")) == [hello(1), hello(2), hello(3)]
    (verdict, *others) = hostile.judge(after)
    assert others == [Verdict(1.0, "right")] * 3
    assert verdict.error == (harm if after[0].over else "")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("action", "harm"),
    [
        ("sleep", ["took longer than 2 s"]),
        ("spin", ["took longer than 2 s"]),
        ("bomb", ["took longer than 2 s", "ran more than 65 processes"]),
        ("allocate_in_many", ["held more than \\d+ MB of memory", "took longer than 2 s"]),
    ],
)
def test_what_takes_the_sandbox_along_harms_that_one(
    hostile: Sessions, four: list[Episode], action: str, harm: list[str]
) -> None:
    begin = time.monotonic()
    after = acted(hostile, four, action, "hello", "hello", "hello")
    assert re.fullmatch(rf"hostile\.py: Hostile ({'|'.join(harm)}) \(p\.csv:0\)", said(after)[0])
    assert said(after)[1:] == [hello(1), hello(2), hello(3)]
    for _ in range(3):
        after[1:] = acted(hostile, after[1:], "hello")
        assert said(after)[1:] == [hello(1), hello(2), hello(3)]
    assert hostile.judge(after[1:]) == [Verdict(1.0, "right")] * 3
    assert time.monotonic() - begin < 60


@pytest.mark.slow
def test_a_sandbox_that_is_taken_down_while_others_act_is_made_up_for(hostile: Sessions, four: list[Episode]) -> None:
    first, *others = four
    (first,) = acted(hostile, [first], "later:0.2")
    end = time.monotonic() + 8
    while time.monotonic() < end:
        others = acted(hostile, list(others), "hello")
        assert said(others) == [hello(1), hello(2), hello(3)]
        if len(others[0].turns) > 30:
            others = [Episode(one.key, one.problem, opening=one.opening) for one in others]
    assert hostile.judge(others) == [Verdict(1.0, "right")] * 3
