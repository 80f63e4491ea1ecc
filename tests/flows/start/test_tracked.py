"""Whose MLflow run is whose, when runs are copied, moved and evaluated."""

import json
import shutil
import uuid
from pathlib import Path

import pytest
from mlflow import MlflowClient

from flows.config import TrainConfig
from flows.start.runs import Run
from infra.runs.record import METRICS
from infra.runs.tracking import Tracker, TrackingConfig, open_run
from infra.storage import store


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    return tmp_path / "home" / "runs"


def named(folder: Path) -> Run:
    return Run(str(folder), TrainConfig(), resumed=True)


def tracked(run: Run, *, local: str = METRICS, guest: bool = False) -> Tracker:
    """As a flow begins or goes on with the tracking of a run."""
    folder = Path(run.uri)
    tracker = open_run(
        TrackingConfig(system_metrics=False),
        home=folder.parents[1],
        experiment="sums",
        run_name=run.name,
        run_id=run.mlflow_run,
        params={},
        local=folder / local,
        guest=guest,
    )
    if not guest:
        run.save_mlflow_run(tracker.run_id)
    return tracker


def points(runs: Path, run_id: str | None) -> tuple[str, str, list[tuple[int, float]]]:
    client = MlflowClient(f"sqlite:///{runs.parent / 'mlflow.db'}")
    found = client.get_run(str(run_id)).info
    history = client.get_metric_history(str(run_id), "reward/mean")
    return found.lifecycle_stage, found.status, [(point.step, point.value) for point in history]


def test_the_copy_of_a_run_gets_an_mlflow_run_of_its_own_and_the_originals_stays(runs: Path) -> None:
    base = named(runs / "base")
    with tracked(base) as first:
        for step in (1, 2, 3):
            first.log(step, {"reward/mean": step / 10})
    shutil.copytree(base.uri, runs / "branch")
    with tracked(base) as first:  # goes on, while its copy goes another way
        first.log(4, {"reward/mean": 0.4})
        branch = named(runs / "branch")
        with tracked(branch) as second:
            second.go_back(2)
            branch.save_mlflow_run(second.run_id)
            second.log(3, {"reward/mean": 0.9})
        of_base = [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
        assert points(runs, first.run_id) == ("active", "RUNNING", of_base)
    assert points(runs, first.run_id) == ("active", "FINISHED", of_base)
    assert points(runs, second.run_id) == ("active", "FINISHED", [(1, 0.1), (2, 0.2), (3, 0.9)])
    assert (base.mlflow_run, branch.mlflow_run) == (first.run_id, second.run_id)


def test_a_run_that_was_moved_keeps_its_mlflow_run_also_where_its_old_name_is_anothers(runs: Path) -> None:
    base = named(runs / "base")
    base.save_mlflow_run("0123abcd")
    moved = named((runs / "base").rename(runs / "moved"))
    assert moved.mlflow_run == "0123abcd"
    base.save_mlflow_run("4567cdef")
    assert moved.mlflow_run == "0123abcd"
    (runs / "link").symlink_to(runs / "moved")
    assert named(runs / "link").mlflow_run == "0123abcd"


def test_a_run_whose_original_cannot_be_seen_is_taken_for_a_copy_and_one_of_before_keeps_what_it_has() -> None:
    at = f"memory://{uuid.uuid4().hex}/run"
    run = Run(at, TrainConfig(), resumed=True)
    store.write_text(f"{at}/tracking.json", json.dumps({"run_id": "0123abcd", "run": "http://127.0.0.1:9/run"}))
    assert run.mlflow_run is None
    store.write_text(f"{at}/tracking.json", json.dumps({"run_id": "0123abcd"}))
    assert run.mlflow_run == "0123abcd"


def test_an_evaluation_leaves_the_status_of_the_mlflow_run_to_whoever_trains_it(runs: Path) -> None:
    base = named(runs / "base")
    with tracked(base) as training:
        training.log(1, {"reward/mean": 0.1})
        with tracked(base, local="eval-sums.jsonl", guest=True) as evaluating:
            assert evaluating.run_id == training.run_id
            evaluating.log(1, {"eval/sums/reward": 0.5})
        assert points(runs, training.run_id) == ("active", "RUNNING", [(1, 0.1)])
        training.log(2, {"reward/mean": 0.2})
    finished = ("active", "FINISHED", [(1, 0.1), (2, 0.2)])
    assert points(runs, training.run_id) == finished
    with pytest.raises(KeyboardInterrupt), tracked(base, local="eval-sums.jsonl", guest=True):
        raise KeyboardInterrupt
    assert points(runs, training.run_id) == finished


def test_an_evaluation_whose_run_has_no_mlflow_run_ends_the_one_that_it_makes(runs: Path) -> None:
    with tracked(named(runs / "base"), local="eval-sums.jsonl", guest=True) as evaluating:
        evaluating.log(1, {"eval/sums/reward": 0.5})
    assert points(runs, evaluating.run_id) == ("active", "FINISHED", [])
