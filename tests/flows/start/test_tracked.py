"""Whose MLflow run is whose, when runs are copied, moved and evaluated."""

import json
import shutil
import uuid
from pathlib import Path

import pytest
from mlflow import MlflowClient

from flows.config import TrainConfig
from flows.start.runs import Run, local_folder
from flows.start.tracked import mlflow_owner, mlflow_run, save_mlflow_run
from infra.home import rlvf_home
from infra.runs.mlflow_run import OWNER_TAG
from infra.runs.record import METRICS
from infra.runs.tracking import Tracker, TrackingConfig
from infra.storage import place


@pytest.fixture
def runs(tmp_path: Path, empty_database: Path) -> Path:
    home = tmp_path / "home"
    home.mkdir()
    shutil.copy(empty_database, home)
    return home / "runs"


def named(folder: Path) -> Run:
    return Run(str(folder), TrainConfig(), resumed=True)


def tracked(run: Run, *, local: str = METRICS, guest: bool = False) -> Tracker:
    """As a flow begins or goes on with the tracking of a run."""
    folder = local_folder(run.uri, rlvf_home())
    tracker = Tracker(
        TrackingConfig(system_metrics=False),
        home=rlvf_home(),
        experiment="sums",
        run_name=run.name,
        run_id=mlflow_run(run.uri),
        owner=mlflow_owner(run.uri),
        params={},
        local=folder / local,
        guest=guest,
    )
    if not guest:
        save_mlflow_run(run.uri, tracker.run_id)
    return tracker


def points(runs: Path, run_id: str | None) -> tuple[str, str, list[tuple[int, float]]]:
    client = MlflowClient(f"sqlite:///{runs.parent / 'mlflow.db'}")
    found = client.get_run(str(run_id)).info
    history = client.get_metric_history(str(run_id), "reward/mean")
    return found.lifecycle_stage, found.status, [(point.step, point.value) for point in history]


@pytest.mark.slow
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
            save_mlflow_run(branch.uri, second.run_id)
            second.log(3, {"reward/mean": 0.9})
        of_base = [(1, 0.1), (2, 0.2), (3, 0.3), (4, 0.4)]
        assert points(runs, first.run_id) == ("active", "RUNNING", of_base)
    assert points(runs, first.run_id) == ("active", "FINISHED", of_base)
    assert points(runs, second.run_id) == ("active", "FINISHED", [(1, 0.1), (2, 0.2), (3, 0.9)])
    assert (mlflow_run(base.uri), mlflow_run(branch.uri)) == (first.run_id, second.run_id)


@pytest.mark.slow
def test_a_run_that_was_moved_keeps_its_mlflow_run_also_where_its_old_name_is_anothers(runs: Path) -> None:
    base = named(runs / "base")
    save_mlflow_run(base.uri, "0123abcd")
    moved = named((runs / "base").rename(runs / "moved"))
    assert mlflow_run(moved.uri) == "0123abcd"
    save_mlflow_run(base.uri, "4567cdef")
    assert mlflow_run(moved.uri) == "0123abcd"
    (runs / "link").symlink_to(runs / "moved")
    assert mlflow_run(named(runs / "link").uri) == "0123abcd"


def test_a_run_whose_original_cannot_be_seen_is_taken_for_a_copy_and_one_of_before_keeps_what_it_has() -> None:
    at = f"memory://{uuid.uuid4().hex}/run"
    run = Run(at, TrainConfig(), resumed=True)
    place.write_text(f"{at}/tracking.json", json.dumps({"run_id": "0123abcd", "run": "http://127.0.0.1:9/run"}))
    assert mlflow_run(run.uri) is None
    place.write_text(f"{at}/tracking.json", json.dumps({"run_id": "0123abcd"}))
    assert mlflow_run(run.uri) == "0123abcd"


@pytest.mark.slow
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


def client_of(runs: Path) -> MlflowClient:
    return MlflowClient(f"sqlite:///{runs.parent / 'mlflow.db'}")


def elsewhere(kind: str, folder: Path, run_id: str | None) -> Run:
    """A run outside of the home, whose file names that MLflow run as its own."""
    run = Run(f"memory://{uuid.uuid4().hex}/run" if kind == "bucket" else str(folder / "shared"), TrainConfig(), True)
    save_mlflow_run(run.uri, run_id)
    return run


@pytest.mark.parametrize("kind", ["bucket", "folder"])
def test_a_run_from_elsewhere_neither_deletes_nor_opens_nor_writes_an_mlflow_run_that_is_not_its_own(
    runs: Path, kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    with tracked(named(runs / "mine")) as mine:
        for step in (1, 2, 3):
            mine.log(step, {"reward/mean": step / 10})
    as_it_was = points(runs, mine.run_id)
    stranger = elsewhere(kind, runs.parents[1], mine.run_id)
    with tracked(stranger, local="eval-sums.jsonl", guest=True) as evaluating:
        evaluating.log(3, {"reward/mean": 0.9})
    assert points(runs, mine.run_id) == as_it_was
    with tracked(stranger) as training:
        training.log(2, {"reward/mean": 0.9})
        assert training.go_back(1) is True
        training.log(2, {"reward/mean": 0.8})
    assert points(runs, mine.run_id) == as_it_was
    assert points(runs, training.run_id) == ("active", "FINISHED", [(2, 0.8)])
    assert len({mine.run_id, evaluating.run_id, training.run_id}) == 3
    assert [line.count(f"has run {mine.run_id} not as that of") for line in caplog.messages] == [1, 1]
    client_of(runs).delete_run(str(mine.run_id))
    save_mlflow_run(stranger.uri, mine.run_id)
    with tracked(stranger):
        assert client_of(runs).get_run(str(mine.run_id)).info.lifecycle_stage == "deleted"


@pytest.mark.parametrize("kind", ["bucket", "folder"])
def test_a_run_from_elsewhere_goes_on_in_the_mlflow_run_that_was_made_for_it_and_in_none_without_a_tag(
    runs: Path, kind: str
) -> None:
    run = elsewhere(kind, runs.parents[1], None)
    for step in (1, 2):
        with tracked(run) as tracker:
            tracker.log(step, {"reward/mean": 0.5})
    assert points(runs, tracker.run_id) == ("active", "FINISHED", [(1, 0.5), (2, 0.5)])
    client_of(runs).delete_tag(str(tracker.run_id), OWNER_TAG)
    with tracked(run) as another:
        assert another.run_id != tracker.run_id


def test_in_the_home_a_run_that_was_moved_or_is_of_before_goes_on_in_its_mlflow_run(runs: Path) -> None:
    with tracked(named(runs / "base")) as first:
        first.log(1, {"reward/mean": 0.5})
    (runs / "base").rename(runs / "moved")
    for folder in ("moved", "moved", "again"):
        if folder == "again":
            (runs / "moved").rename(runs / "again")
        with tracked(named(runs / folder)) as later:
            assert later.run_id == first.run_id
    client_of(runs).delete_tag(str(first.run_id), OWNER_TAG)
    with tracked(named(runs / "again")) as later:
        assert later.run_id == first.run_id
    assert OWNER_TAG in client_of(runs).get_run(str(first.run_id)).data.tags
