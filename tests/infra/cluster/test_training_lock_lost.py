"""The training lock on a scheduler that is gone."""

import threading
import time
from pathlib import Path

import dask.config
import pytest
from distributed import Client

from flows.benches.faults import stopped
from infra.cluster import exclusions, placement
from infra.cluster import training_lock as locks
from infra.cluster.training_lock import training, training_lock
from tests.conftest import free_port, running_scheduler
from tests.processes import until


@pytest.mark.slow
def test_a_turn_on_a_scheduler_that_is_gone_keeps_nobody_from_the_next_one(tmp_path: Path) -> None:
    port = free_port()

    def nobody_waits(line: str) -> None:
        raise AssertionError(line)

    with running_scheduler(tmp_path / "first.log", None, port) as first:
        client = Client(first.address, set_as_default=False)
        with dask.config.set({"distributed.scheduler.locks.lease-timeout": "1s"}):  # signs are given in a fifth of that
            earlier = training_lock(client, "mine", nobody_waits)
            earlier.__enter__()
        first.process.kill()
    with running_scheduler(tmp_path / "second.log", None, port) as second:
        until(lambda: client.status == "running", 60)
        with Client(second.address, set_as_default=False) as back:
            time.sleep(1)  # for the signs that the one who has not noticed gives
            with training_lock(back, "mine", nobody_waits):
                assert training(back) == "mine"
                earlier.__exit__(None, None, None)
                assert training(back) == "mine"
    client.close()


@pytest.mark.slow
def test_a_run_ends_although_the_scheduler_stands_still(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (placement, exclusions, locks):
        monkeypatch.setattr(module, "ANSWER_SECONDS", 0.5)
    dispatch_stopped = threading.Event()
    with running_scheduler(tmp_path / "scheduler.log", None, free_port()) as there:
        client = Client(there.address, set_as_default=False)
        lock = training_lock(client, "mine", str)
        mine = lock.__enter__()
        threading.Timer(2, dispatch_stopped.set).start()
        with stopped(there.process.pid):
            began = time.monotonic()
            with pytest.raises(TimeoutError):
                placement.offers(client, given_up=dispatch_stopped.is_set)
            assert 2 <= time.monotonic() - began < 10
            monkeypatch.setattr(locks, "SURE_SECONDS", 0.0)
            mine.check()
            exclusions.announce(client, "mine", {"tcp://worker": "it failed"})
            lock.__exit__(None, None, None)
            assert time.monotonic() - began < 20
        client.close()


@pytest.mark.slow
def test_a_scheduler_that_is_away_is_no_error_of_whoever_has_the_lock(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    quick = {"distributed.scheduler.locks.lease-timeout": "2s", "distributed.comm.timeouts.connect": "1s"}
    with (
        dask.config.set(quick),
        running_scheduler(tmp_path / "scheduler.log", None, free_port()) as there,
        Client(there.address, set_as_default=False) as client,
        training_lock(client, "mine", str),
    ):
        there.process.kill()
        until(lambda: client.status != "running", 10)
        time.sleep(3)  # three attempts
    assert [record.getMessage() for record in caplog.records if record.name == "tornado.application"] == []
