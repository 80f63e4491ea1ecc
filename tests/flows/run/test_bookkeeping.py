"""What a run keeps of itself, whatever the outside does meanwhile."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from flows.config import TrainConfig
from flows.run import bookkeeping
from flows.run.bookkeeping import Bookkeeping
from flows.start.runs import Run
from flows.start.tracked import mlflow_run, save_mlflow_run
from infra.cluster.placement import Offer, PlacementConfig
from infra.dispatch.calls import Calls
from infra.runs.metric_log import MetricLog, read_metrics
from infra.runs.record import read_record


def books(run: Run, tracker: Any, said: list[str] | None = None) -> Bookkeeping:
    """Those of a run that has no cluster, not entered."""
    said = [] if said is None else said
    workplace = SimpleNamespace(
        display=SimpleNamespace(say=said.append),
        dispatch=Calls(cast("Any", SimpleNamespace(cluster=None, scheduler_comm=None)), PlacementConfig()),
        prefect=SimpleNamespace(serves=lambda **_: False),
    )
    return Bookkeeping(run, cast("Any", workplace), Path(run.uri), tracker, lambda: None, {})


@pytest.fixture
def run(tmp_path: Path) -> Run:
    run = Run(str(tmp_path / "run"), TrainConfig(), resumed=True)
    run.save_config()
    return run


def test_an_mlflow_run_that_is_made_after_an_outage_is_the_runs_own_from_the_next_step_on(run: Run) -> None:
    save_mlflow_run(run.uri, "unknown")
    tracker = SimpleNamespace(run_id="unknown")
    kept = books(run, tracker)
    kept.logged()
    assert mlflow_run(run.uri) == "unknown"
    tracker.run_id = "made"
    kept.logged()
    assert mlflow_run(run.uri) == "made"


def test_evaluations_of_steps_that_are_made_again_go_though_nothing_else_of_them_was_logged(run: Run) -> None:
    evaluated = MetricLog(Path(run.uri, "eval-sums.jsonl"), again=True)
    for step in (1, 2, 3):
        evaluated.append(step, {"eval/sums/reward": 0.5})
    tracker = SimpleNamespace(run_id=None, last_step=lambda _: 2, go_back=lambda _: False)
    books(run, tracker).go_back(2)
    assert [line.step for line in read_metrics(Path(run.uri, "eval-sums.jsonl"))] == [1, 2]


@pytest.mark.parametrize(("logged", "missing"), [(None, "steps 1 to 3 are"), (2, "step 3 is"), (3, None), (4, None)])
def test_metrics_that_do_not_reach_the_checkpoint_are_said(run: Run, logged: int | None, missing: str | None) -> None:
    said: list[str] = []
    tracker = SimpleNamespace(run_id=None, last_step=lambda _: logged, go_back=lambda _: False)
    books(run, tracker, said).go_back(4)
    start = f"warning: the newest checkpoint is of step 4, and {missing} missing from metrics.jsonl"
    assert [line[: len(start)] for line in said] == ([start] if missing else [])


def test_who_gets_no_more_leases_is_noted_and_tagged_once_and_told_to_the_scheduler(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, str]] = []
    monkeypatch.setattr(bookkeeping, "announce", lambda _, name, reasons: told.append({"run": name, **reasons}))
    tags: list[tuple[str, str]] = []
    kept = books(run, SimpleNamespace(run_id=None, tag=lambda *tag: tags.append(tag)))
    kept._about["excluded"] = {"old": "of an earlier session"}
    kept._show_excluded()
    assert (told, tags) == ([], [])
    exclusions = kept._workplace.dispatch.exclusions
    for _ in range(2):
        exclusions.found_wrong(Offer("tcp://1", "laptop", {}), "far off", Offer("tcp://2", "other", {}))
        kept._show_excluded()
        kept._show_excluded()
    assert told == [{"run": run.name, "tcp://1": "far off"}]
    assert tags == [("rlvf.excluded.laptop", "far off")]
    about = read_record(run.uri, Path(run.uri)).about
    assert about["excluded"] == {"old": "of an earlier session", "laptop": "far off"}
