import json
import logging
import math
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.exceptions import MlflowException

from infra.runs import mlflow_run, tracking
from infra.runs.metric_log import MetricLog, read_metrics
from infra.runs.tracking import TrackingConfig, TrackingError, open_run

QUIET = TrackingConfig(system_metrics=False)


@pytest.fixture(scope="module")
def empty_database(tmp_path_factory):
    home = tmp_path_factory.mktemp("template")
    MlflowClient(f"sqlite:///{home / 'mlflow.db'}").search_experiments()
    return home / "mlflow.db"


@pytest.fixture
def home(tmp_path, empty_database):
    folder = tmp_path / "home"
    folder.mkdir()
    shutil.copy(empty_database, folder / "mlflow.db")
    return folder


@pytest.fixture
def client(home):
    return MlflowClient(f"sqlite:///{home / 'mlflow.db'}")


def start(home, config=QUIET, run_id=None, params=None, local=None, guest=False):
    return open_run(
        config,
        home=home,
        experiment="sums",
        run_name="first",
        run_id=run_id,
        params=params or {},
        local=local,
        guest=guest,
    )


def table(client, run_id, path, folder):
    return json.loads(Path(client.download_artifacts(run_id, path, str(folder))).read_text())


def points(client, run_id, name):
    return [(metric.step, metric.value) for metric in client.get_metric_history(run_id, name)]


def test_a_run_is_logged_with_metrics_params_and_status(home, client, tmp_path):
    nested = {"loss": {"name": "grpo", "clip": [0.2, 0.28]}, "long": "x" * 7000, "tracking": QUIET}
    with start(home, params=nested, local=tmp_path / "run" / "metrics.jsonl") as tracker:
        for step in range(3):
            tracker.log(step, {"reward/mean": step / 4, "staleness/max": step})
    run = client.get_run(tracker.run_id)
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "first"
    assert client.get_experiment(run.info.experiment_id).name == "sums"
    assert run.data.params["loss.name"] == "grpo"
    assert json.loads(run.data.params["loss.clip"]) == [0.2, 0.28]
    assert run.data.params["tracking.samples_every"] == "10"
    assert len(run.data.params["long"]) == 6000
    assert points(client, tracker.run_id, "reward/mean") == [(0, 0.0), (1, 0.25), (2, 0.5)]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [(line["step"], line["reward/mean"]) for line in lines] == [(0, 0.0), (1, 0.25), (2, 0.5)]


def test_the_config_names_the_experiment(home, client):
    config = TrackingConfig(experiment="mine", system_metrics=False)
    with start(home, config) as tracker:
        pass
    assert client.get_experiment(tracker.experiment_id).name == "mine"


@pytest.mark.parametrize(
    ("error", "status"), [(RuntimeError, "FAILED"), (KeyboardInterrupt, "KILLED"), (SystemExit, "KILLED")]
)
def test_the_status_tells_how_it_ended(home, client, error, status):
    with pytest.raises(error), start(home) as tracker:
        raise error
    assert client.get_run(tracker.run_id).info.status == status


def test_a_continued_run_goes_on_in_the_same_mlflow_run(home, client, tmp_path):
    local = tmp_path / "metrics.jsonl"
    with start(home, params={"steps": 2, "seed": 1}, local=local) as first:
        first.log(0, {"reward/mean": 0.1})
        first.log(1, {"reward/mean": 0.2})
    params = {"steps": 4, "seed": 1, "new": "n"}
    with start(home, run_id=first.run_id, params=params, local=local) as second:
        assert client.get_run(first.run_id).info.status == "RUNNING"
        assert second.last_step() == 1
        assert second.last_step("eval/pass_at_1") is None
        second.log(1, {"reward/mean": 0.9, "eval/pass_at_1": 0.5})
        second.log(2, {"reward/mean": 0.3})
    run = client.get_run(first.run_id)
    assert second.run_id == first.run_id
    assert run.data.params == {"steps": "2", "seed": "1", "new": "n"}
    assert run.data.tags["resumed.steps"] == "4"
    assert points(client, first.run_id, "reward/mean") == [(0, 0.1), (1, 0.2), (2, 0.3)]
    assert points(client, first.run_id, "eval/pass_at_1") == [(1, 0.5)]


def test_a_run_that_mlflow_lost_is_created_again_from_the_local_file(home, tmp_path, empty_database, caplog):
    local = tmp_path / "metrics.jsonl"
    with start(home, local=local) as first:
        for step in range(12):  # more points than one batch of MLflow's takes
            first.log(step, {"a": math.nan} | {f"b/{index}": step * index for index in range(99)})
    shutil.copy(empty_database, home / "mlflow.db")
    caplog.clear()
    with start(home, run_id=first.run_id, local=local) as second:
        assert "no longer knows run" in caplog.text
    assert second.run_id != first.run_id
    fresh = MlflowClient(f"sqlite:///{home / 'mlflow.db'}?")  # another address: the old one's connections are cached
    assert len(points(fresh, second.run_id, "a")) == 12
    for index in range(99):
        assert points(fresh, second.run_id, f"b/{index}") == [(step, step * index) for step in range(12)]


def test_a_deleted_experiment_and_a_deleted_run_are_brought_back(home, client):
    with start(home) as first:
        pass
    client.delete_run(first.run_id)
    client.delete_experiment(first.experiment_id)
    with start(home) as second:
        second.log(0, {"a": 1})
    assert second.experiment_id == first.experiment_id
    client.delete_run(second.run_id)
    with start(home, run_id=second.run_id) as third:
        third.log(1, {"a": 2})
    assert third.run_id == second.run_id
    assert points(client, third.run_id, "a") == [(0, 1), (1, 2)]


def test_values_that_are_not_finite_are_kept_as_words_and_are_gaps_in_mlflow(home, client, tmp_path):
    local = tmp_path / "metrics.jsonl"
    values = {"a": math.nan, "b": math.inf, "c": -math.inf}
    with start(home, local=local) as tracker:
        tracker.log(0, values)
    assert json.loads(local.read_text(), parse_constant=pytest.fail) | values == json.loads(local.read_text()) | values
    [line] = read_metrics(local)
    assert math.isnan(line.metrics["a"])
    assert (line.metrics["b"], line.metrics["c"]) == (math.inf, -math.inf)
    for name in values:
        [(step, value)] = points(client, tracker.run_id, name)
        assert step == 0
        assert math.isnan(value)


@pytest.mark.parametrize("name", ["", "a?b", "/a", "a/", "a//b", "../a", "step", "time", "a\n"])
def test_a_name_that_mlflow_refuses_is_refused_before_it_is_written(tmp_path, name):
    log = MetricLog(tmp_path / "metrics.jsonl")
    with pytest.raises(ValueError, match="metric name"):
        log.append(0, {name: 1.0})
    assert log.lines() == []


@pytest.mark.parametrize("torn", [b'{"step": 2, "ti', b'{"step": 2, "time": 5, "a": 1.0}'])
def test_a_torn_last_line_is_dropped_and_a_broken_one_is_skipped(tmp_path, torn, caplog):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 0, "time": 1, "a": 1.0}\n\x00\x00\n[]\n{"step": 1, "time": 2, "a": 2.0}\n' + torn)
    assert [line.step for line in read_metrics(path)] == [0, 1]
    log = MetricLog(path)
    assert log.last == {"a": 1}
    log.append(2, {"a": 3.0})
    assert [line.step for line in read_metrics(path)] == [0, 1, 2]
    assert "line 2 is not" in caplog.text
    assert "line 3 is not" in caplog.text
    assert "line 4" not in caplog.text


CHILD = """
import os, signal, sys
from pathlib import Path
from infra.runs.tracking import TrackingConfig, open_run
home, local = Path(sys.argv[1]), Path(sys.argv[2])
tracker = open_run(TrackingConfig(system_metrics=False), home=home, experiment="sums", run_name="first", run_id=None,
                   params={}, local=local)
for step in range(5):
    tracker.log(step, {"a": step})
with local.open("a") as file:
    file.write('{"step": 5, "time"')
print(tracker.run_id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_kill_9_loses_no_logged_step_and_a_new_home_is_made_in_silence(tmp_path):
    home, local = tmp_path / "new home", tmp_path / "metrics.jsonl"
    child = subprocess.run(
        [sys.executable, "-c", CHILD, home, local], capture_output=True, text=True, cwd=tmp_path, timeout=120
    )
    assert child.returncode == -signal.SIGKILL
    assert child.stderr == ""
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "new home"]
    run_id = child.stdout.strip()
    client = MlflowClient(f"sqlite:///{home / 'mlflow.db'}")
    assert client.get_run(run_id).info.status == "RUNNING"
    with start(home, run_id=run_id, local=local) as tracker:
        assert tracker.last_step() == 4
        tracker.log(5, {"a": 5})
    assert points(client, run_id, "a") == [(step, step) for step in range(6)]


def test_an_answer_that_got_lost_does_not_log_twice(home, client, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(tracking, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(tracking, "PAUSE_RATIO", 0)
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


def test_an_outage_loses_nothing_and_is_said_once(server, home, client, tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(tracking, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(tracking, "PAUSE_RATIO", 0)
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


def test_a_server_that_stays_away_is_left_alone_for_a_while(server, home, tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "PAUSE_SECONDS", 3600)
    with start(home, TrackingConfig(uri=server.uri, system_metrics=False), local=tmp_path / "m.jsonl") as tracker:
        server.stop()
        tracker.log(0, {"a": 0})
        server.go()
        tracker.log(1, {"a": 1})
        assert points(MlflowClient(server.uri), tracker.run_id, "a") == []
    assert points(MlflowClient(server.uri), tracker.run_id, "a") == [(0, 0), (1, 1)]


def test_a_resumed_run_starts_without_the_server_and_catches_up(server, home, client, tmp_path, monkeypatch):
    monkeypatch.setattr(tracking, "PAUSE_SECONDS", 0)
    monkeypatch.setattr(tracking, "PAUSE_RATIO", 0)
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


def test_samples_are_tables_that_mlflow_shows(home, client, tmp_path, monkeypatch):
    monkeypatch.setattr(mlflow_run, "TABLES_SHOWN", 2)
    rows = [
        {"prompt": "what is 1/2?", "completion": 'a "b",\n½', "reward": 0.0, "reason": "unparsable"},
        {"prompt": "1+1", "completion": "2", "reward": math.nan, "reason": "right"},
    ]
    with start(home, TrackingConfig(samples_every=5, system_metrics=False)) as tracker:
        assert [step for step in range(11) if tracker.samples_due(step)] == [0, 5, 10]
        for step in (0, 5, 10, 10):
            tracker.log_samples(step, rows)
    tags = client.get_run(tracker.run_id).data.tags
    assert [entry["path"] for entry in json.loads(tags["mlflow.loggedArtifacts"])] == [
        "samples/000005.json",
        "samples/000010.json",
    ]
    shown = table(client, tracker.run_id, "samples/000010.json", tmp_path)
    assert shown["columns"] == ["prompt", "completion", "reward", "reason"]
    assert shown["data"] == [["what is 1/2?", 'a "b",\n½', 0.0, "unparsable"], ["1+1", "2", "nan", "right"]]
    with start(home, run_id=tracker.run_id) as again:
        again.log_samples(15, rows)
    tags = client.get_run(tracker.run_id).data.tags
    assert [entry["path"] for entry in json.loads(tags["mlflow.loggedArtifacts"])] == [
        "samples/000010.json",
        "samples/000015.json",
    ]


def test_files_and_pictures_lie_under_the_home(home, tmp_path):
    (tmp_path / "report.html").write_text("<p>")
    with start(home) as tracker:
        tracker.log_file(tmp_path / "report.html")
        tracker.log_picture(tmp_path / "report.html")
        with pytest.raises(FileNotFoundError, match="no such file"):
            tracker.log_picture(tmp_path / "none.png")
    artifacts = home / "mlartifacts" / tracker.run_id / "artifacts"
    assert (artifacts / "report.html").read_text() == "<p>"
    assert (artifacts / "pictures" / "report.html").exists()


def test_system_metrics_continue_with_the_run(home, client, monkeypatch):
    monkeypatch.setenv("MLFLOW_SYSTEM_METRICS_SAMPLING_INTERVAL", "0.05")

    def steps(run_id):
        return [step for step, _ in points(client, run_id, "system/cpu_utilization_percentage")]

    def wait_for_more(run_id, count):
        deadline = time.monotonic() + 60
        while len(steps(run_id)) <= count:
            assert time.monotonic() < deadline, "no system metrics"
            threading.Event().wait(0.05)

    with start(home, TrackingConfig()) as first:
        wait_for_more(first.run_id, 0)
    before = len(steps(first.run_id))
    with start(home, TrackingConfig(), run_id=first.run_id):
        wait_for_more(first.run_id, before)
    assert steps(first.run_id) == list(range(len(steps(first.run_id))))
    assert not [thread for thread in threading.enumerate() if thread.name == "SystemMetricsMonitor"]


def test_the_page_command_names_the_database(home):
    with start(home) as tracker:
        page = tracker.page(port=5001)
    assert page.command == "rlvf up"
    assert (
        page.url
        == f"http://127.0.0.1:5001/#/experiments/{tracker.experiment_id}/runs/{tracker.run_id}?workflowType=machine_learning"
    )


def test_the_command_line_does_not_wait_for_mlflow_and_matplotlib():
    heavy = "{'mlflow', 'matplotlib'} & set(sys.modules)"
    check = f"import sys, infra.runs.tracking, flows.report.pictures; sys.exit(bool({heavy}))"
    root = Path(tracking.__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", check], cwd=root, env=os.environ, timeout=60).returncode == 0


def test_the_tracking_uri_of_the_environment_is_used_where_the_config_names_none(home, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{home / 'mlflow.db'}")
    elsewhere = tmp_path / "elsewhere"
    assert tracking.tracking_uri(TrackingConfig(uri="http://here")) == "http://here"
    with start(elsewhere) as tracker:
        assert MlflowClient(f"sqlite:///{home / 'mlflow.db'}").get_run(tracker.run_id)
    assert not (elsewhere / "mlflow.db").exists()


def test_steps_that_are_made_again_are_none_twice_on_a_machine_with_another_log(home, client, tmp_path):
    with start(home, local=tmp_path / "one" / "metrics.jsonl") as tracker:
        for step in range(1, 4):
            tracker.log(step, {"reward/mean": step / 4, "perf/step_seconds": 1.0})
    other = tmp_path / "other" / "metrics.jsonl"
    other.parent.mkdir()
    lines = (tmp_path / "one" / "metrics.jsonl").read_text().splitlines(keepends=True)
    other.write_text("".join(lines[:2]))  # what had come there before the first machine was lost
    with start(home, run_id=tracker.run_id, local=other) as again:
        again.log(3, {"reward/mean": 0.75})
        again.log(4, {"reward/mean": 1.0})
    assert points(client, tracker.run_id, "reward/mean") == [(1, 0.25), (2, 0.5), (3, 0.75), (4, 1.0)]
    assert [line.step for line in read_metrics(other)] == [1, 2, 3, 4]


def test_a_run_that_went_back_has_the_later_steps_once_and_as_they_were_made_last(home, client, tmp_path):
    local = tmp_path / "metrics.jsonl"
    with start(home, local=local) as tracker:
        for step in range(1, 6):
            tracker.log(step, {"reward/mean": step / 10})
            tracker.log_samples(step, [{"completion": f"of {step}"}])
    left = tracker.run_id
    with start(home, run_id=left, local=local) as again:
        assert again.go_back(5) is False
        assert again.run_id == left
        assert again.go_back(3) is True
        assert again.last_step("reward/mean") == 3
        for step in (4, 5):
            again.log(step, {"reward/mean": 0.9})
    assert points(client, again.run_id, "reward/mean") == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.9), (5, 0.9)]
    assert [line.metrics["reward/mean"] for line in read_metrics(local)] == [0.1, 0.2, 0.3, 0.9, 0.9]
    assert client.get_run(left).info.lifecycle_stage == "deleted"
    assert table(client, again.run_id, "samples/000003.json", tmp_path)["data"] == [["of 3"]]
    shown = json.loads(client.get_run(again.run_id).data.tags["mlflow.loggedArtifacts"])
    assert [each["path"] for each in shown] == [f"samples/{step:06d}.json" for step in (1, 2, 3)]


def test_what_only_mlflow_knows_of_later_steps_is_left_too(home, client, tmp_path):
    with start(home, local=tmp_path / "one.jsonl") as tracker:
        for step in (1, 2, 3):
            tracker.log(step, {"reward/mean": 0.0})
    with start(home, run_id=tracker.run_id, local=tmp_path / "empty.jsonl") as again:
        assert again.go_back(2) is True
        for step in (3, 4):
            again.log(step, {"reward/mean": 1.0})
    assert points(client, again.run_id, "reward/mean") == [(3, 1.0), (4, 1.0)]


def test_what_a_guest_measures_again_stands_beside_what_it_measured_and_is_what_counts(home, client, tmp_path):
    with start(home, local=tmp_path / "metrics.jsonl") as training:
        training.log(3, {"reward/mean": 0.1})
    measured = [(3, 0.9), (3, 0.5), (2, 0.7)]
    for step, value in measured:
        with start(home, run_id=training.run_id, local=tmp_path / "eval.jsonl", guest=True) as guest:
            guest.log(step, {"eval/sums/reward": value})
    assert sorted(points(client, training.run_id, "eval/sums/reward")) == sorted(measured)
    assert client.get_run(training.run_id).data.metrics["eval/sums/reward"] == 0.5  # of the newest, as made last
    logged = [(line.step, line.metrics["eval/sums/reward"]) for line in read_metrics(tmp_path / "eval.jsonl")]
    assert logged == measured
