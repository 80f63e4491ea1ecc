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
