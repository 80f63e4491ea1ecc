"""An MLflow that is away, or has no space: nothing is lost."""

import logging
import math
import shutil
import subprocess
import threading
import time

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from infra.runs import outage
from infra.runs.outage import lacks
from infra.runs.tracking import TrackingConfig, TrackingError
from tests.infra.runs.tracked import points, start, table


def test_an_answer_that_got_lost_does_not_log_twice(home, client, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(outage, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(outage, "PAUSE_RATIO", 0)
    with start(home, local=tmp_path / "metrics.jsonl") as tracker:
        real = MlflowClient.log_batch

        def loses_the_answer(self, *args, **kwargs):
            real(self, *args, **kwargs)
            raise MlflowException("the answer got lost")

        with monkeypatch.context() as patched:
            patched.setattr(MlflowClient, "log_batch", loses_the_answer)
            tracker.log(0, {"a": 1.5, "b": math.nan})
        assert "the answer got lost" in caplog.text
        tracker.log(1, {"a": 2.5})
    assert points(client, tracker.run_id, "a") == [(0, 1.5), (1, 2.5)]
    assert len(points(client, tracker.run_id, "b")) == 1


@pytest.fixture
def server(home, request):
    assert home.exists()  # its database is the server's
    return request.getfixturevalue("mlflow_server")


@pytest.mark.slow
def test_an_outage_loses_nothing_and_is_said_once(server, home, client, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(outage, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(outage, "PAUSE_RATIO", 0)
    config = TrackingConfig(uri=server.uri, system_metrics=False)
    picture = tmp_path / "reward.png"
    picture.write_bytes(b"picture")
    with start(home, config, local=tmp_path / "metrics.jsonl") as tracker:
        tracker.log(0, {"a": 0, "lost": math.nan})
        server.stop()
        caplog.clear()
        for step in (1, 2, 3):
            tracker.log(step, {"a": step})
        tracker.log_samples(3, [{"prompt": "1+1", "completion": "2", "reward": 1.0, "reason": "right"}])
        tracker.log_picture(picture)
        warnings = [record for record in caplog.records if record.levelno >= logging.WARNING]
        assert len(warnings) == 1
        assert server.uri in warnings[0].getMessage()
        assert points(client, tracker.run_id, "a") == [(0, 0)]
        server.go()
        tracker.log(4, {"a": 4})
        assert points(client, tracker.run_id, "a") == [(step, step) for step in range(5)]
        server.stop()
        tracker.log(5, {"a": 5})
        server.go()
    assert points(client, tracker.run_id, "a") == [(step, step) for step in range(6)]
    assert client.get_run(tracker.run_id).info.status == "FINISHED"
    http = MlflowClient(server.uri)
    assert table(http, tracker.run_id, "samples/000003.json", tmp_path)["data"] == [["1+1", "2", 1.0, "right"]]
    assert [file.path for file in http.list_artifacts(tracker.run_id, "pictures")] == ["pictures/reward.png"]
    assert tracker.page().command is None
    assert (
        tracker.page().url
        == f"{server.uri}/#/experiments/{tracker.experiment_id}/runs/{tracker.run_id}?workflowType=machine_learning"
    )


@pytest.mark.slow
def test_a_server_that_stays_away_is_left_alone_for_a_while(server, home, tmp_path, monkeypatch):
    monkeypatch.setattr(outage, "PAUSE_SECONDS", 3600)
    with start(home, TrackingConfig(uri=server.uri, system_metrics=False), local=tmp_path / "m.jsonl") as tracker:
        server.stop()
        tracker.log(0, {"a": 0})
        server.go()
        tracker.log(1, {"a": 1})
        assert points(MlflowClient(server.uri), tracker.run_id, "a") == []
    assert points(MlflowClient(server.uri), tracker.run_id, "a") == [(0, 0), (1, 1)]


@pytest.mark.slow
def test_a_run_that_ends_while_the_server_is_away_waits_for_it_a_minute_at_most(server, home, tmp_path, caplog):
    config = TrackingConfig(uri=server.uri, system_metrics=False)
    with start(home, config, local=tmp_path / "m.jsonl") as tracker:
        tracker.log(0, {"a": 0})
        server.stop()
        tracker.log(1, {"a": 1})
        back = threading.Timer(3, server.go)
        back.start()
    back.join()
    assert points(MlflowClient(server.uri), tracker.run_id, "a") == [(0, 0), (1, 1)]
    assert MlflowClient(server.uri).get_run(tracker.run_id).info.status == "FINISHED"
    assert "until it has been away for a minute" in caplog.text
    assert "brings the rest" not in caplog.text


@pytest.mark.slow
def test_whoever_ends_it_ends_the_wait(server, home, tmp_path):
    over = threading.Event()
    config = TrackingConfig(uri=server.uri, system_metrics=False)
    tracker = start(home, config, local=tmp_path / "m.jsonl", is_over=over.is_set)
    tracker.log(0, {"a": 0})
    server.stop()
    began = time.monotonic()
    threading.Timer(2, over.set).start()
    tracker.finish("FINISHED")
    assert 2 <= time.monotonic() - began < outage.BACK_SECONDS / 2


@pytest.mark.slow
@pytest.mark.parametrize("status", ["FINISHED", "FAILED", "KILLED"])
def test_a_server_that_is_not_back_in_time_is_no_longer_waited_for(server, home, tmp_path, monkeypatch, caplog, status):
    monkeypatch.setattr(outage, "BACK_SECONDS", 3)
    tracker = start(home, TrackingConfig(uri=server.uri, system_metrics=False), local=tmp_path / "m.jsonl")
    tracker.log(0, {"a": 0})
    server.stop()
    began = time.monotonic()
    tracker.finish(status)
    assert (time.monotonic() - began >= 3) == (status == "FINISHED")
    assert ("waiting for MLflow" in caplog.text) == (status == "FINISHED")
    assert "`rlvf train --resume RUN` brings the rest" in caplog.text


@pytest.mark.slow
def test_a_server_that_was_away_for_long_before_the_end_is_not_waited_for(server, home, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(outage, "BACK_SECONDS", 0)
    with start(home, TrackingConfig(uri=server.uri, system_metrics=False), local=tmp_path / "m.jsonl") as tracker:
        tracker.log(0, {"a": 0})
        server.stop()
        tracker.log(1, {"a": 1})
    assert "waiting for MLflow" not in caplog.text
    assert "`rlvf train --resume RUN` brings the rest" in caplog.text


@pytest.mark.slow
def test_a_resumed_run_starts_without_the_server_and_catches_up(server, home, client, tmp_path, monkeypatch):
    monkeypatch.setattr(outage, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(outage, "PAUSE_RATIO", 0)
    config, local = TrackingConfig(uri=server.uri, system_metrics=False), tmp_path / "metrics.jsonl"
    first = start(home, config, local=local)
    first.log(0, {"a": 0})
    server.stop()
    first.log(1, {"a": 1})
    first.finish("FAILED")
    with start(home, config, run_id=first.run_id, local=local) as second:
        second.log(2, {"a": 2})
        assert points(client, first.run_id, "a") == [(0, 0)]
        server.go()
    assert points(client, first.run_id, "a") == [(0, 0), (1, 1), (2, 2)]


def test_a_run_that_the_server_does_not_know_is_created_again(server, home, client):
    with start(home, TrackingConfig(uri=server.uri, system_metrics=False), run_id="0" * 32) as tracker:
        tracker.log(0, {"a": 1})
    assert points(client, tracker.run_id, "a") == [(0, 1)]


def test_a_new_run_without_its_server_is_refused_without_showing_the_password(home, server):
    server.stop()
    uri = server.uri.replace("://", "://me:secret@")
    try:
        with pytest.raises(TrackingError, match=r"tracking\.uri http://\*\*\*@127") as refused:
            start(home, TrackingConfig(uri=uri, system_metrics=False))
    finally:
        server.go()
    assert "secret" not in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.fixture
def small_home(tmp_path, empty_database, monkeypatch):
    """A home on a disk of its own, of four megabytes."""
    home = tmp_path / "small"
    home.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", home], capture_output=True, check=False)
    if made.returncode:
        pytest.skip(f"needs the right to mount: {made.stderr.decode().strip()}")
    shutil.copy(empty_database, home / "mlflow.db")
    monkeypatch.setenv("RLVF_HOME", str(home))
    yield home
    subprocess.run(["umount", "--lazy", home], check=True)  # SQLAlchemy keeps the database open


def fill(home):
    """Take all that is left of its disk."""
    with (home / "filler").open("wb", buffering=0) as file:
        while left := shutil.disk_usage(home).free:
            file.write(bytes(min(2**16, left)))


@pytest.mark.slow
def test_a_full_disk_under_mlflow_is_called_that_and_what_it_lacks_is_said(small_home, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(outage, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(outage, "PAUSE_RATIO", 0)
    local = tmp_path / "metrics.jsonl"  # on another disk
    with start(small_home, local=local) as first:
        first.log(0, {"a": 0})
        fill(small_home)
        for step in range(1, 50):
            first.log(step, {f"metric/{number}": step for number in range(100)})
    client = MlflowClient(f"sqlite:///{small_home}/mlflow.db")
    assert points(client, first.run_id, "metric/0") == []
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    assert len(said) == 2
    assert "no space left on the disk; free some, or set RLVF_HOME" in said[0]
    assert said[1].endswith("mlflow.db has this run up to step 0 of 49 only; `rlvf train --resume RUN` brings the rest")
    (small_home / "filler").unlink()
    start(small_home, run_id=first.run_id, local=local).finish("FINISHED")
    assert points(client, first.run_id, "metric/0") == [(step, step) for step in range(1, 50)]


def test_what_mlflow_lacks_where_it_was_not_reached_or_lacks_the_end_alone():
    assert lacks({}, {"a": 3}).startswith("was told nothing of this session; `rlvf train --resume")
    assert lacks({"a": 3, "system/cpu": 90}, {"a": 3}).startswith("was not told all of the end of this run;")
