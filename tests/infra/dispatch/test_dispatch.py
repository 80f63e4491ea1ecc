"""Calls on a real cluster whose workers are really killed.

The functions that run on the workers are nested ones, which are sent by value: a worker cannot import this file.
"""

import os
import re
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, get_worker

from flows.benches.faults import stopped
from infra.cluster.placement import PlacementConfig, PlacementError, offers
from infra.dispatch import watch
from infra.dispatch.calls import DispatchStoppedError, PoisonedCallError
from infra.dispatch.dispatch import Dispatch, leave_thread
from tests.infra.cluster.processes import die_until
from tests.processes import until

pytestmark = pytest.mark.slow


def test_a_call_runs_where_its_tags_are(dispatch: Dispatch) -> None:
    assert dispatch.run("train", lambda: get_worker().name) == "trainer"
    assert dispatch.submit("verify", lambda: get_worker().name).result().result == "verifier-0"


def test_what_the_call_raises_comes_at_once(dispatch: Dispatch, tmp_path: Path) -> None:
    def fail() -> None:
        (tmp_path / str(len(list(tmp_path.iterdir())))).touch()
        raise TimeoutError("mine")

    with pytest.raises(TimeoutError, match="mine"):
        dispatch.run("train", fail)
    assert len(list(tmp_path.iterdir())) == 1
    with pytest.raises(TimeoutError, match="mine"):
        list(dispatch.lease("train", fail, [()]))
    assert len(list(tmp_path.iterdir())) == 2
    assert dispatch.lost == Counter()


def test_a_trainer_killed_in_a_call_costs_that_try(dispatch: Dispatch, tmp_path: Path) -> None:
    assert dispatch.run("train", die_until(tmp_path, 1), 42) == 42
    assert dispatch.lost == {"train": 1}
    assert [(span.worker, span.call, span.lost) for span in dispatch.timeline.take()] == [
        ("trainer", "train", True),
        ("trainer", "train", False),
    ]


def test_a_call_aside_goes_on_while_the_next_one_runs(dispatch: Dispatch, tmp_path: Path) -> None:
    def beside() -> tuple[str, bool]:
        leave_thread()
        for _ in range(1000):
            if (tmp_path / "next").exists():
                break
            time.sleep(0.01)
        return get_worker().address, (tmp_path / "next").exists()

    def run() -> str:
        (tmp_path / "next").touch()
        return str(get_worker().address)

    where = dispatch.run("train", lambda: get_worker().address)
    begun = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(lambda: dispatch.run("train", beside, background="publish", begun=begun.set))
        assert begun.wait(90)
        assert dispatch.run("train", run) == where
        assert other.result(30) == (where, True)
    assert sorted(span.call for span in dispatch.timeline.take()) == ["publish", "train", "train"]


def test_a_call_aside_is_made_again_where_its_worker_died(dispatch: Dispatch, tmp_path: Path) -> None:
    die = die_until(tmp_path, 1)

    def beside(value: int) -> int:
        leave_thread()
        return die(value)

    assert dispatch.run("train", beside, 7, background="publish") == 7
    assert dispatch.lost == {"publish": 1}
    assert [(span.call, span.lost) for span in dispatch.timeline.take()] == [("publish", True), ("publish", False)]


def test_what_is_told_reaches_every_worker_that_it_is_for_beside_its_work(dispatch: Dispatch, tmp_path: Path) -> None:
    def told(word: str) -> None:
        (tmp_path / f"{os.getpid()} {word}").touch()

    def work() -> str:
        for _ in range(2000):
            if (tmp_path / f"{os.getpid()} now").exists():
                return str(get_worker().name)
            time.sleep(0.01)
        return "nobody told"

    leases = dispatch.lease("generate", work, [()] * 2)
    with ThreadPoolExecutor(1) as pool:
        names = pool.submit(lambda: sorted(name for _, name in leases))
        until(lambda: len(dispatch.awaited) == 2)
        dispatch.tell("generate", told, "now")
        assert names.result(30) == ["generator-0", "generator-1"]
    assert len(list(tmp_path.iterdir())) == 2


def test_who_has_stopped_is_told_once_and_keeps_no_thread_for_each_time(
    client: Client, dispatch: Dispatch, tmp_path: Path
) -> None:
    def told(word: str) -> None:
        (tmp_path / f"{os.getpid()} {word}").touch()

    (verifier,) = dispatch.offers("verify")
    pid = client.run(os.getpid, workers=[verifier.address])[verifier.address]

    def telling() -> int:
        return sum(thread.name == "telling" for thread in threading.enumerate())

    with stopped(pid):
        for version in range(20):
            dispatch.tell("verify", told, str(version))
        assert telling() == 1
    until(lambda: telling() == 0)
    assert [file.name for file in tmp_path.iterdir()] == [f"{pid} 0"]
    dispatch.tell("verify", told, "later")
    until((tmp_path / f"{pid} later").exists)


def test_a_call_that_kills_every_worker_is_given_up(dispatch: Dispatch, tmp_path: Path) -> None:
    with pytest.raises(PoisonedCallError, match="verify: 3 workers died while they ran the same call"):
        dispatch.run("verify", die_until(tmp_path, 99), 1)
    assert len(list(tmp_path.iterdir())) == 3
    assert dispatch.lost == {"verify": 3}


def test_stopping_frees_every_thread_that_waits(dispatch: Dispatch, tmp_path: Path) -> None:
    def call(name: str) -> None:
        (tmp_path / name).touch()
        while not (tmp_path / "go").exists():
            time.sleep(0.01)

    raised: list[BaseException] = []

    def caught(wait: Callable[[], Any]) -> None:
        try:
            wait()
        except DispatchStoppedError as error:
            raised.append(error)

    threads = [
        threading.Thread(target=caught, args=(lambda: dispatch.run("train", call, "train"),)),
        threading.Thread(target=caught, args=(lambda: list(dispatch.lease("verify", call, [("verify",)])),)),
    ]
    for thread in threads:
        thread.start()
    until(lambda: (tmp_path / "train").exists() and (tmp_path / "verify").exists())
    dispatch.stop()
    for thread in threads:
        thread.join(90)
    (tmp_path / "go").touch()  # the workers finish what they were at
    assert len(raised) == 2
    with pytest.raises(DispatchStoppedError):
        dispatch.run("train", call, "again")


def test_held_work_is_taken_back_and_done_later(client: Client, dispatch: Dispatch, tmp_path: Path) -> None:
    def call(item: int) -> int:
        from infra.cluster.cancellation import cancellation_check

        (tmp_path / f"{item}-{time.monotonic_ns()}").touch()
        check = cancellation_check()
        while not (tmp_path / "go").exists():
            check()
            time.sleep(0.001)
        return item

    got: list[tuple[int, int]] = []
    thread = threading.Thread(target=lambda: got.extend(dispatch.lease("generate", call, [(i,) for i in range(5)])))
    thread.start()
    until(lambda: len(list(tmp_path.iterdir())) == 2)  # one on each generator
    dispatch.hold()
    until(lambda: not any(client.processing().values()))
    # whose threads are free, too: they do what comes next
    assert client.submit(os.getpid, resources={"GENERATOR": 1}, pure=False).result(timeout=5)
    assert len(list(tmp_path.iterdir())) == 2
    (tmp_path / "go").touch()
    dispatch.release()
    thread.join()
    assert sorted(got) == [(i, i) for i in range(5)]
    assert dispatch.lost == Counter()


def test_a_held_dispatch_can_be_stopped(dispatch: Dispatch) -> None:
    dispatch.hold()
    raised: list[BaseException] = []

    def run() -> None:
        try:
            dispatch.run("verify", os.getpid)
        except DispatchStoppedError as error:
            raised.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    dispatch.stop()
    thread.join(90)
    assert len(raised) == 1


def test_what_is_waited_for_is_said(client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def call(mark: str) -> str:
        (tmp_path / mark).touch()
        while not (tmp_path / "go").exists():
            time.sleep(0.01)
        return mark

    monkeypatch.setattr(watch, "FIRST_SECONDS", 0.4)
    monkeypatch.setattr(watch, "LONGEST_SECONDS", 1.0)
    said: list[str] = []
    until(lambda: len(offers(client)) == 4)
    with Dispatch(client, PlacementConfig(), said.append) as dispatch, ThreadPoolExecutor(2) as pool:
        time.sleep(1)
        assert said == []  # nobody waits for anything
        training = pool.submit(dispatch.run, "train", call, "train")
        verifying = pool.submit(lambda: list(dispatch.lease("verify", call, [("verify",)])))
        until((tmp_path / "verify").exists)
        until(lambda: len(said) >= 4)
        (tmp_path / "go").touch()
        assert training.result(60) == "train"
        assert verifying.result(60) == [(0, "verify")]
        several = list(said)
        dispatch.run("verify", call, "again")
        time.sleep(1)
        assert said == several
    seconds = r"\d+ s"
    for line in several[1:]:
        assert re.fullmatch(
            rf"nothing has come back for {seconds}; waiting for (train on trainer \({seconds}\)|"
            rf"verify on verifier-0 \({seconds}\)|; )+",
            line,
        ), line
    silences = [int(re.findall(r"for (\d+) s", line)[0]) for line in several]
    assert silences == sorted(silences)


def test_a_call_that_takes_what_its_like_take_is_nothing_to_be_said(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "FIRST_SECONDS", 0.5)
    monkeypatch.setattr(watch, "LONGEST_SECONDS", 6.0)

    def call(seconds: float) -> None:
        time.sleep(seconds)

    said: list[str] = []
    until(lambda: len(offers(client)) == 4)
    with Dispatch(client, PlacementConfig(), said.append) as dispatch:
        dispatch.run("train", call, 3.0)
        before = len(said)
        assert before >= 1
        dispatch.run("train", call, 3.0)
        list(dispatch.lease("verify", call, [(0.0,)]))
        assert said[before:] == []
        dispatch.run("train", call, 8.0)  # longer than ever
        assert len(said) > before


def test_leases_without_a_worker_are_told_of_and_end_in_words(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "FIRST_SECONDS", 0.2)
    said: list[str] = []
    placement = PlacementConfig(generate=("CUDA", "GENERATOR"))
    with (
        Dispatch(client, placement, said.append, patience=3) as dispatch,
        pytest.raises(PlacementError, match=r"placement.generate needs CUDA and GENERATOR but no worker offers CUDA"),
    ):
        list(dispatch.lease("generate", lambda: None, [()]))
    assert re.fullmatch(
        r"nothing has come back for \d s; waiting for generate on a worker that offers CUDA and GENERATOR \(\d s\)",
        said[0],
    )
    assert dispatch.lacking == {}
