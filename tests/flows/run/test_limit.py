"""What limits a run is looked at now and then, and said where people look."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.config import TrainConfig
from flows.planner.limits import limit_of_record
from flows.run.limit import FIRST, RunningLimit
from flows.run.opened import Opened
from flows.start.runs import Run
from infra.runs.metric_log import MetricLine
from infra.runs.record import Record
from rl.config import ProblemsConfig, VerifierConfig
from rl.verifiers.spec import VerifierSpec
from tasks.own_algorithm import open_algorithm
from tasks.sets.problem_set import open_problems
from tests.flows.planner.test_limits import GRAPH, JETSON, Lived
from tests.flows.run.test_artifacts import artifacts


def test_it_is_looked_at_after_eight_steps_and_then_after_twice_as_many() -> None:
    run = Lived(4.0, JETSON, train=2.5, steps=40)
    limit = RunningLimit(GRAPH, 1, dict, cut=False)
    spans = run.spans()
    each = len(spans) // run.steps
    due = []
    for step in range(run.steps):
        figures = {name: values[step] for name, values in run.figures.items()}
        if limit.add(spans[step * each : (step + 1) * each], figures):
            due.append(step + 1)
        if step == 3:
            assert limit.words() == ""
    assert due == [FIRST, 2 * FIRST, 4 * FIRST]
    assert limit.words().startswith("the trainer waits 38% of the time for rollouts; one more generator like jetson")


def test_a_scheduler_that_is_away_costs_the_sentence() -> None:
    def away() -> dict[str, tuple[str, int]]:
        raise OSError("the Dask client is closed")

    run = Lived(4.0, JETSON)
    limit = RunningLimit(GRAPH, 1, away, cut=False)
    for step in range(run.steps):
        limit.add(run.spans(), {name: values[step] for name, values in run.figures.items()})
    assert limit.words() == ""


@pytest.mark.slow
def test_a_reward_model_may_be_what_limits_a_run() -> None:
    """What the run says while it trains is what its report says."""
    run = Lived(4.0, {"jetson": (8, 0.125)}, reward=0.5)
    sums = open_problems((ProblemsConfig(),), VerifierConfig(), 0, 0, 8)
    rated = replace(sums, verifiers={"sums": VerifierSpec(name="arithmetic", reward_model="/rater")})
    config = TrainConfig()
    opened = Opened(Run("run", config, resumed=False), rated, [], open_algorithm(config.algorithm))
    limit = RunningLimit(opened.graph, 1, dict, cut=True)
    for step in range(run.steps):
        limit.add(run.spans() if step == 0 else [], {name: values[step] for name, values in run.figures.items()})
    assert "one more worker like rater would make steps" in limit.words()
    lines = [
        MetricLine(step=step + 1, time=0, metrics={name: of[step] for name, of in run.figures.items()})
        for step in range(run.steps)
    ]
    kept = limit_of_record(Record(tuple(lines), (tuple(run.spans()),)), {"staleness": 1})
    assert kept is not None
    assert kept.words() == limit.words()


@pytest.mark.slow
def test_a_run_says_what_limits_it_on_the_terminal_in_its_result_its_report_and_in_prefect(
    lab: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flows.run.limit.FIRST", 4)
    monkeypatch.setattr("flows.planner.limits.STEPS", 3)
    result = lab.train(steps="4", tracking__report="true")
    said = [line for line in capsys.readouterr().err.splitlines() if "limit: " in line]
    assert said
    assert result.limit
    run = Path(result.run)
    assert json.loads((run / "result.json").read_text())["limit"] == result.limit
    assert "What limits it: " in (run / "report.html").read_text()
    shown = artifacts(lab, result.flow_run_id)
    assert shown[f"{run.name}-limit"].data in said[0]
