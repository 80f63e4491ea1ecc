"""A run that goes on, goes back or has a guest: in MLflow every step is there once."""

import json
import math
import shutil

import pytest
from mlflow import MlflowClient

from infra.runs import mlflow_run
from infra.runs.metric_log import read_metrics
from infra.runs.mlflow_run import Owner
from infra.sqlite import DamagedDatabaseError
from tests.infra.runs.tracked import points, start, table


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.parametrize("run_id", [None, "0" * 32])
def test_a_damaged_database_is_one_line_with_the_remedy(tmp_path, run_id):
    (tmp_path / "mlflow.db").write_bytes(b"no database" * 1000)
    with pytest.raises(DamagedDatabaseError) as error:
        start(tmp_path, run_id=run_id, local=tmp_path / "metrics.jsonl")
    said = str(error.value)
    assert said.startswith(f"{tmp_path / 'mlflow.db'} is damaged (file is not a database): move it aside; ")
    assert "\n" not in said


@pytest.mark.slow
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


def logged(home, local, steps):
    """The ended tracker of a run of so many steps, each with its reward and samples."""
    with start(home, local=local) as tracker:
        for step in range(1, steps + 1):
            tracker.log(step, {"reward/mean": step / 10})
            tracker.log_samples(step, [{"completion": f"of {step}"}])
    return tracker


def shown_tables(client, run_id):
    return [each["path"] for each in json.loads(client.get_run(run_id).data.tags["mlflow.loggedArtifacts"])]


def test_a_run_that_went_back_has_the_later_steps_once_and_as_they_were_made_last(home, client, tmp_path):
    local = tmp_path / "metrics.jsonl"
    tracker = logged(home, local, 5)
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
    assert shown_tables(client, again.run_id) == [f"samples/{step:06d}.json" for step in (1, 2, 3)]


@pytest.mark.slow
def test_a_table_that_is_lost_keeps_no_run_from_going_back(home, client, tmp_path, caplog, capfd):
    local = tmp_path / "metrics.jsonl"
    tracker = logged(home, local, 5)
    (lost,) = (home / "mlartifacts").rglob("000002.json")
    lost.unlink()
    with start(home, run_id=tracker.run_id, local=local) as again:
        assert again.go_back(3) is True
        for step in (4, 5):
            again.log(step, {"reward/mean": 0.9})
            again.log_samples(step, [{"completion": "anew"}])
    assert "Downloading" not in capfd.readouterr().err
    (left,) = client.search_runs([tracker.experiment_id])
    assert left.info.run_id == again.run_id
    assert left.info.status == "FINISHED"
    assert points(client, again.run_id, "reward/mean") == [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.9), (5, 0.9)]
    assert shown_tables(client, again.run_id) == [f"samples/{step:06d}.json" for step in (1, 3, 4, 5)]
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("infra")]
    assert len(lines) == 2  # when it happened, and at the end
    assert all("lacks files of this run (samples/000002.json): " in line for line in lines)


def test_another_evaluation_of_a_step_is_sent_too_and_none_twice(home, client, tmp_path):
    local = tmp_path / "metrics.jsonl"
    with start(home, local=local) as tracker:
        tracker.log(2, {"eval/reward": 0.9}, "one")
    with start(home, run_id=tracker.run_id, local=local) as again:
        again.log(2, {"eval/reward": 0.1}, "other")
        again.log(4, {"eval/reward": 0.2}, "other")
    start(home, run_id=tracker.run_id, local=local).finish("FINISHED")
    assert points(client, again.run_id, "eval/reward") == [(2, 0.9), (2, 0.1), (4, 0.2)]


@pytest.mark.slow
@pytest.mark.parametrize("at", ["delete_run", "log_batch"])
def test_a_run_that_is_killed_while_it_goes_back_leaves_none_behind(home, client, tmp_path, monkeypatch, at):
    local = tmp_path / "metrics.jsonl"
    tracker = logged(home, local, 3)
    killed = start(home, run_id=tracker.run_id, local=local)

    def kill(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(MlflowClient, at, kill)
        with pytest.raises(KeyboardInterrupt):
            killed.go_back(2)
    with start(home, run_id=tracker.run_id, local=local) as again:  # nobody was told of the new run's id
        assert again.go_back(2) is True
        again.log(3, {"reward/mean": 0.9})
    (left,) = client.search_runs([tracker.experiment_id])
    assert left.info.run_id == again.run_id
    assert points(client, again.run_id, "reward/mean") == [(1, 0.1), (2, 0.2), (3, 0.9)]
    assert shown_tables(client, again.run_id) == ["samples/000001.json", "samples/000002.json"]


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


def test_a_run_that_went_back_while_mlflow_was_away_deletes_none_that_is_not_its_own(
    home, client, tmp_path, monkeypatch
):
    local = tmp_path / "metrics.jsonl"
    with start(home, local=local) as tracker:
        for step in (1, 2):
            tracker.log(step, {"reward/mean": step / 10})

    def is_away(*_):
        raise OSError("away")

    with monkeypatch.context() as patched:
        patched.setattr(mlflow_run.MlflowRun, "attach", is_away)
        other = start(home, run_id=tracker.run_id, local=local, owner=Owner("of another"))
        assert other.go_back(1) is True
    other.log(2, {"reward/mean": 0.9})
    other.finish("FINISHED")
    assert points(client, tracker.run_id, "reward/mean") == [(1, 0.1), (2, 0.2)]
    assert client.get_run(tracker.run_id).info.lifecycle_stage == "active"
    assert points(client, other.run_id, "reward/mean") == [(1, 0.1), (2, 0.9)]
