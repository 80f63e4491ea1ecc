"""What limits a run is looked at now and then, and said where people look."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.run.limit import FIRST, RunningLimit
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
