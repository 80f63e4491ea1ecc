import json
import math
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from mlflow import MlflowClient

from infra.runs import tables, tracking
from infra.runs.metric_log import read_metrics
from infra.runs.tracking import TrackingConfig
from tests.infra.runs.tracked import QUIET, points, start, table


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


def test_a_tag_is_replaced_by_the_next_of_its_name(home, client):
    with start(home) as tracker:
        for value in ("far off", "far off again"):
            tracker.tag("rlvf.excluded.laptop", value)
    assert client.get_run(tracker.run_id).data.tags["rlvf.excluded.laptop"] == "far off again"


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


CHILD = """
import os, signal, sys
from pathlib import Path
from infra.runs.mlflow_run import Owner
from infra.runs.tracking import TrackingConfig, Tracker
home, local = Path(sys.argv[1]), Path(sys.argv[2])
tracker = Tracker(TrackingConfig(system_metrics=False), home=home, experiment="sums", run_name="first", run_id=None,
                   params={}, owner=Owner("of the first"), local=local)
for step in range(5):
    tracker.log(step, {"a": step})
with local.open("a") as file:
    file.write('{"step": 5, "time"')
print(tracker.run_id, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
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


def test_samples_are_tables_that_mlflow_shows(home, client, tmp_path, monkeypatch):
    monkeypatch.setattr(tables, "SHOWN", 2)
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
        (tmp_path / "report.html").chmod(0o6755)
        tracker.log_file(tmp_path / "report.html")
        tracker.log_picture(tmp_path / "report.html")
        with pytest.raises(FileNotFoundError, match="no such file"):
            tracker.log_picture(tmp_path / "none.png")
    artifacts = home / "mlartifacts" / tracker.run_id / "artifacts"
    assert (artifacts / "report.html").read_text() == "<p>"
    assert (artifacts / "pictures" / "report.html").exists()
    assert (artifacts / "report.html").stat().st_mode & 0o7111 == 0  # it is no program of ours


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
