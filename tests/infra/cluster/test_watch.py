"""What is said of a wait that no worker's call stands behind."""

import re
import threading
from typing import cast

import pytest
from distributed import Client

from infra.cluster import watch
from infra.cluster.calls import Calls
from infra.cluster.placement import PlacementConfig
from infra.cluster.watch import Watch
from tests.processes import until


def test_what_this_process_itself_waits_for_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "FIRST_SECONDS", 0.1)
    heard = threading.Event()
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        heard.set()

    calls = Calls(cast("Client", None), PlacementConfig(), say)  # nothing of the cluster is asked
    watching = Watch(calls)
    watching.start()
    try:
        with calls.waiting_for("the storage of s3://runs/x"), calls.waiting_for("the storage of s3://runs/x"):
            assert heard.wait(60)
        assert calls.own == {}
    finally:
        watching.stop()
    line = r"nothing has come back for \d+ s; waiting for the storage of s3://runs/x \(\d+ s\)"
    assert re.fullmatch(line, said[0])


def test_it_is_said_whatever_comes_back_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "FIRST_SECONDS", 0.2)
    monkeypatch.setattr(watch, "LONGEST_SECONDS", 0.4)
    said: list[str] = []
    calls = Calls(cast("Client", None), PlacementConfig(), said.append)
    watching = Watch(calls)
    watching.start()
    try:
        with calls.waiting_for("the storage of s3://runs/x"):
            until(lambda: (calls.forget(), len(said) >= 3)[1])  # type: ignore[func-returns-value]
    finally:
        watching.stop()
    assert all(re.search(r"waiting for the storage of s3://runs/x \(\d+ s\)$", line) for line in said)


def test_no_silence_is_longer_than_a_minute() -> None:
    assert watch.FIRST_SECONDS <= 10
    tick = watch.FIRST_SECONDS / 10
    assert watch.LONGEST_SECONDS + tick + 2 * watch.ANSWER_SECONDS <= 60  # the last: a scheduler that does not answer
