"""What a report makes of a record in which somebody, or a disk, has written anything."""

from pathlib import Path

import pytest

from flows.report import write_report
from infra.runs.metric_log import MetricLog
from infra.runs.record import METRICS, read_record
from infra.runs.rollouts import write_rollouts

WHOLE = {
    "group": 0,
    "prompt": "add 1 and 2",
    "target": "3",
    "source": "grammar",
    "completion": "1 + 2",
    "reward": 1.0,
    "reason": "correct",
    "error": "",
    "version": 0,
    "tokens": 5,
}


@pytest.mark.parametrize(
    "damaged", [{"a": 1}, ["a", "list"], "text", {**WHOLE, "reward": "high"}, {**WHOLE, "group": []}]
)
def test_damaged_completions_are_left_out_and_counted(tmp_path: Path, damaged: object) -> None:
    run = tmp_path / "run"
    MetricLog(run / METRICS).append(1, {"reward/mean": 0.5})
    write_rollouts(str(run), 1, [WHOLE, damaged])  # type: ignore[list-item]
    out = write_report(str(run), read_record(str(run), run), tmp_path / "report.html")
    text = out.read_text()
    assert "1 of 2 completions are damaged and left out" in text
    assert "add 1 and 2" in text
