"""What a report makes of a record in which somebody, or a disk, has written anything."""

import gzip
import json
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from flows.report.html import write_report
from infra.runs.metric_log import MetricLog
from infra.runs.record import ABOUT, METRICS, TIMELINE, read_record
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


@pytest.mark.slow
@pytest.mark.parametrize(
    "damaged",
    [
        {"a": 1},
        ["a", "list"],
        "text",
        {**WHOLE, "reward": "high"},
        {**WHOLE, "group": []},
        {**WHOLE, "reward": 10**400},
        {**WHOLE, "reward": "0.5"},
        {**WHOLE, "tokens": "5"},
        {**WHOLE, "group": 0.0},
        {**WHOLE, "messages": "[1]"},
        {**WHOLE, "messages": "{"},
        {**WHOLE, "messages": "[" * 5000},
    ],
)
def test_damaged_completions_are_left_out_and_counted(tmp_path: Path, damaged: object) -> None:
    run = tmp_path / "run"
    MetricLog(run / METRICS).append(1, {"reward/mean": 0.5})
    write_rollouts(str(run), 1, [WHOLE, damaged])  # type: ignore[list-item]
    out = write_report(str(run), read_record(str(run), run), tmp_path / "report.html")
    text = out.read_text()
    assert "1 of 2 completions are damaged and left out" in text
    assert "add 1 and 2" in text


def test_a_conversation_is_shown_by_turns_and_cut_as_a_whole(tmp_path: Path) -> None:
    run = tmp_path / "run"
    MetricLog(run / METRICS).append(1, {"reward/mean": 0.5})
    roles = ("assistant", "tool", "assistant", "user", "assistant")
    said = ("guess(<32>)", "higher", "so be it", "go on", "x" * 1600)
    messages = [{"role": role, "content": text} for role, text in zip(roles, said, strict=True)]
    write_rollouts(str(run), 1, [{**WHOLE, "messages": json.dumps(messages)}])
    text = write_report(str(run), read_record(str(run), run), tmp_path / "report.html").read_text()
    assert '<span class="label">policy</span><pre>guess(&lt;32&gt;)</pre>' in text
    assert '<span class="label">tool</span><pre class=quiet>higher</pre>' in text
    assert '<span class="label">environment</span><pre class=quiet>go on</pre>' in text
    shown = 1500 - len("".join(said[:-1]))
    assert f'{"x" * shown}<span class="quiet"> … {1600 - shown:,} more characters</span>' in text
    assert "1 + 2" not in text


def reported(run: Path, **files: str) -> str:
    """The text of the report of a run with one step and these files."""
    MetricLog(run / METRICS).append(1, {"reward/mean": 0.5})
    for name, content in files.items():
        (run / {"about": ABOUT, "timeline": TIMELINE, "config": "config.yaml"}[name]).write_text(content)
    return write_report(str(run), read_record(str(run), run), run / "report.html").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(
    "damaged",
    [
        {"lost": [1]},
        {"lost": {"generate": "x"}},
        {"links": [1]},
        {"links": {"a": None}},
        {"began": "x"},
        {"began": 1e300},
        {"versions": [1]},
        {"workers": {"a": None}},
        {"status": [1]},
        [1],
        None,
    ],
)
def test_a_damaged_account_of_the_run_is_left_out_and_said(
    tmp_path: Path, damaged: Any, caplog: pytest.LogCaptureFixture
) -> None:
    text = reported(tmp_path / "run", about=json.dumps(damaged))
    assert "reward in training" in text
    (line,) = caplog.messages
    assert line.startswith(f"{tmp_path}/run/about.json is damaged (")
    assert line.endswith("; what it says is left out")
    assert "\n" not in line


SPAN = {"worker": "generator-0", "call": "generate", "start": 1.79e9, "end": 1.79e9 + 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong", [{"start": "x"}, {"end": float("nan")}, {"end": 1e300}, {"worker": [1]}, {"loading": "x"}, {"fetched": -1}]
)
def test_a_damaged_line_of_the_timeline_is_left_out(tmp_path: Path, wrong: dict[str, Any]) -> None:
    lines = [{"session": 1.79e9}, SPAN, {**SPAN, **wrong}]
    text = reported(tmp_path / "run", timeline="".join(json.dumps(line) + "\n" for line in lines))
    assert "generator-0" in text


def test_a_name_is_shown_as_it_is_and_not_as_a_formula(tmp_path: Path) -> None:
    name = "a$\\frac{$b"
    text = reported(
        tmp_path / "run", timeline=json.dumps({**SPAN, "worker": name}) + "\n", config=f"policy: '{name}'\n"
    )
    assert f">{name}<" in text


def test_half_of_a_character_keeps_nobody_from_a_report(tmp_path: Path) -> None:
    run = tmp_path / "run"
    (run / "rollouts").mkdir(parents=True)
    torn = json.dumps({**WHOLE, "completion": "\ud800 completed", "error": "\ud800"})
    (run / "rollouts" / "1.jsonl.gz").write_bytes(gzip.compress(f"{torn}\n{json.dumps(WHOLE)}\n".encode()))
    assert "? completed" in reported(run)
    assert "? completed" in reported(run, config='policy: "\\ud800 text"\n')


@pytest.mark.slow
def test_a_few_lines_that_mean_billions_cost_no_time(tmp_path: Path) -> None:
    names = "abcdefghi"
    bomb = 'a: &a ["x", "x", "x", "x", "x", "x", "x", "x", "x", "x"]\n' + "".join(
        f"{name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n" for before, name in pairwise(names)
    )
    began = time.process_time()
    assert "reward in training" in reported(tmp_path / "run", config=bomb)
    assert "reward in training" in reported(tmp_path / "run", config="[" * 10_000)
    assert time.process_time() - began < 60


def test_a_time_that_is_not_finite_is_left_out(tmp_path: Path) -> None:
    MetricLog(tmp_path / "run" / METRICS).append(2, {"perf/step_seconds": float("inf"), "perf/update_seconds": 1.0})
    assert "reward in training" in reported(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("value", [1e308, -1e308, float("inf"), float("nan")])
def test_figures_that_cannot_be_summed_are_gaps(tmp_path: Path, value: float) -> None:
    names = [f"perf/{name}_seconds" for name in ("step", "rollouts", "update", "publish")]
    names += ["perf/rollouts_per_second", "policy/entropy", "completion/tokens_mean", "completion/truncated"]
    names += ["staleness/mean", "staleness/max", "groups/generated", "reasons/wrong", "eval/reward"]
    names += [
        f"sync/{name}" for name in ("bytes", "fetched_bytes", "ratio", "changed", "encode_seconds", "apply_seconds")
    ]
    for step in (2, 3):
        MetricLog(tmp_path / "run" / METRICS).append(step, {"reward/mean": value, **dict.fromkeys(names, value)})
    assert "reward in training" in reported(tmp_path / "run")
