"""Lines that say which workers come and go."""

import os
from collections.abc import Sequence
from dataclasses import replace
from signal import SIGKILL

import pytest
from distributed import Client

from infra.cluster.placement import Offer, PlacementConfig, offers
from infra.dispatch import presence
from infra.dispatch.dispatch import Dispatch
from infra.dispatch.presence import Presence
from tests.processes import until


def offer(name: str, process: int = 1) -> Offer:
    return Offer(f"tcp://{name}:{process}", name, {"GENERATOR": 1.0})


LAPTOP, JETSON, TRAINER = offer("laptop"), offer("jetson"), offer("trainer")


def lines_of(*answers: tuple[float, Sequence[Offer]]) -> list[tuple[float, str]]:
    """What is said, and when, of what is there from a second on."""
    said: list[tuple[float, str]] = []
    one = Presence(lambda line: said.append((at, line)))
    for (begin, there), (end, _) in zip(answers, [*answers[1:], (answers[-1][0] + 30, ())], strict=True):
        for tick in range(int(begin * 4), int(end * 4)):
            at = tick / 4
            one.tell(at, there)
    return said


def test_what_is_there_first_is_no_news_and_each_change_is_said_once() -> None:
    both, jetson_2 = [LAPTOP, TRAINER], offer("jetson", 2)
    assert lines_of(
        (0, both),
        (20, [*both, JETSON]),
        (40, [TRAINER, JETSON]),
        (60, [*both, JETSON]),
        (80, [*both, jetson_2]),
        (100, [*both, replace(jetson_2, leaves=True)]),
        (101, both),
    ) == [
        (21, "jetson has joined"),
        (46, "laptop is gone"),
        (61, "laptop is there again"),
        (81, "jetson was started again"),
        (107, "jetson has left"),
    ]


def test_who_is_back_at_once_was_not_gone() -> None:
    assert lines_of((0, [LAPTOP, JETSON]), (1, [LAPTOP]), (4, [LAPTOP, JETSON])) == []
    (line,) = lines_of((0, [LAPTOP, JETSON]), (1, [LAPTOP]), (4, [LAPTOP, offer("jetson", 2)]))
    assert line == (5, "jetson was started again")


def test_of_two_with_one_name_the_last_is_missed() -> None:
    assert lines_of((0, [JETSON, offer("jetson", 2)]), (5, [JETSON]), (9, [])) == [(15, "jetson is gone")]


def test_many_are_gathered_in_a_line_and_one_that_comes_and_goes_fills_no_screen() -> None:
    nodes = [offer(f"n{number}") for number in range(6)]
    assert lines_of((0, [TRAINER]), (1, nodes)) == [
        (2, "n0, n1, n2, n3 and 2 more have joined"),
        (12, "trainer is gone"),
    ]
    flapping = [(at, [TRAINER, JETSON] if at % 2 else [TRAINER, LAPTOP]) for at in range(60)]
    assert lines_of(*flapping) == [(2, "jetson has joined"), (65, "laptop is gone")]


def test_what_is_undone_before_it_is_said_is_no_news() -> None:
    both, pc = [LAPTOP, JETSON], offer("pc")
    joined = [(0, both), (10, [*both, pc])]
    assert lines_of(*joined, (11, [JETSON, pc]), (19, [*both, pc]), (30, [*both, pc])) == [(11, "pc has joined")]
    assert lines_of(*joined, (12, [*both, pc, TRAINER]), (13, [*both, pc]), (40, [*both, pc, TRAINER])) == [
        (11, "pc has joined"),
        (41, "trainer has joined"),
    ]
    assert lines_of(*joined, (11, [JETSON, pc]), (19, [offer("laptop", 2), JETSON, pc])) == [
        (11, "pc has joined"),
        (21, "laptop was started again"),
    ]


def test_news_that_are_not_undone_wait_for_their_line_beside_some_that_are() -> None:
    pc = offer("pc")
    assert lines_of(
        (0, [LAPTOP, JETSON]),
        (10, [LAPTOP, JETSON, pc]),
        (11, [pc]),
        (20, [JETSON, pc]),
        (31, [LAPTOP, JETSON, pc]),
    ) == [(11, "pc has joined"), (21, "laptop is gone"), (32, "laptop is there again")]


def test_an_older_answer_that_comes_late_says_nothing() -> None:
    said: list[str] = []
    one = Presence(said.append)
    one.tell(1.0, [LAPTOP])
    one.tell(30.0, [LAPTOP, replace(JETSON, seen=9.0)])
    one.tell(20.0, [LAPTOP])
    one.tell(60.0, [LAPTOP, JETSON])
    assert said == ["jetson has joined"]


@pytest.mark.slow
def test_a_worker_that_is_killed_without_a_call_is_said_and_a_renewed_dispatch_has_not_forgotten_it(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(presence, "PAUSE_SECONDS", 0)
    said: list[str] = []
    with Dispatch(client, PlacementConfig(), said.append) as dispatch:
        until(lambda: len(dispatch.offers()) == 4)
        (address,) = [each.address for each in offers(client) if each.name == "verifier-0"]
        renewed = dispatch.renewed()
        os.kill(client.run(os.getpid, workers=[address])[address], SIGKILL)
        until(lambda: bool(renewed.offers()) and bool(said), 60, every=0.1)
    assert said == ["verifier-0 was started again"]
