"""What is said of a wait: of this process's own, and of a worker's for its storage."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from distributed import Client

from infra.cluster.placement import Offer, PlacementConfig, offers
from infra.dispatch import watch
from infra.dispatch.calls import Awaited, Calls
from infra.dispatch.dispatch import Dispatch
from infra.dispatch.watch import Watch
from tests.processes import until


def test_what_this_process_itself_waits_for_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "FIRST_SECONDS", 0.1)
    heard = threading.Event()
    said: list[str] = []

    def say(line: str) -> None:
        said.append(line)
        heard.set()

    calls = Calls(
        cast("Client", SimpleNamespace(cluster=None, scheduler_comm=None)), PlacementConfig(), say
    )  # nothing of the cluster is asked
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
    calls = Calls(cast("Client", SimpleNamespace(cluster=None, scheduler_comm=None)), PlacementConfig(), said.append)
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


def test_a_worker_of_another_machine_is_named_with_it() -> None:
    assert watch._name(Offer("tls://10.0.0.7:40123", "jetson-trainer", {})) == "jetson-trainer at 10.0.0.7"
    assert watch._name(Offer("tls://127.0.0.1:40123", "trainer", {})) == "trainer"


def test_a_worker_that_has_several_calls_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "offers", lambda *_: [Offer("tls://127.0.0.1:1", "g0", {})])
    monkeypatch.setattr(Watch, "_where", lambda _: {"first": "tls://127.0.0.1:1", "next": "tls://127.0.0.1:1"})
    awaited = {key: Awaited("generate", "draw", None, since) for key, since in (("next", 19.0), ("first", 10.0))}
    calls = cast("Calls", SimpleNamespace(client=None, placement=PlacementConfig()))
    assert Watch(calls).waiting_for(awaited, {}, 20.0) == "generate on g0 (10 s)"


def test_a_scheduler_without_an_answer_is_said_to_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(*_: object) -> list[Offer]:
        raise TimeoutError

    monkeypatch.setattr(watch, "offers", silent)
    said = Watch(cast("Calls", SimpleNamespace(client=None))).waiting_for({}, {}, 20.0)
    assert said == "the Dask scheduler, which does not answer (no answer in time)"


@pytest.mark.slow
def test_what_keeps_a_worker_from_its_storage_is_said(
    client: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fetch(uri: str) -> str:
        if not (tmp_path / "go").exists():
            raise OSError(113, "No route to host")
        return uri

    def call() -> str:
        from infra.storage.retry_policy import RetryPolicy

        return str(RetryPolicy(600)(fetch, "s3://runs/x"))

    monkeypatch.setattr(watch, "FIRST_SECONDS", 0.2)
    monkeypatch.setattr(watch, "LONGEST_SECONDS", 0.5)
    said: list[str] = []
    until(lambda: len(offers(client)) == 4)
    with Dispatch(client, PlacementConfig(), said.append) as dispatch, ThreadPoolExecutor(1) as pool:
        training = pool.submit(dispatch.run, "train", call)
        named = r"train on trainer \(\d+ s, waits for the storage: s3://runs/x: \[Errno 113\] No route to host\)"
        try:
            until(lambda: any(re.search(named, line) for line in said), about=lambda: said)
        finally:
            (tmp_path / "go").touch()
        assert training.result(60) == "s3://runs/x"
        until(lambda: {offer.waits for offer in offers(client)} == {""})
