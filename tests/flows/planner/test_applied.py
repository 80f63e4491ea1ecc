"""A plan that was applied is no silent change of what the run is trained with."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from flows.config import TrainConfig
from flows.planner.applied import apply_to_run
from flows.start.resume import resume_run
from flows.start.runs import Run
from flows.start.saved import saved_config, write_config
from tests.flows.planner.kept_run import keep_run


def resumed(run: Path) -> Run:
    return resume_run(run.name, str(run.parent), None, {})


def test_what_a_plan_has_changed_is_said_until_a_session_is_trained_with_it(tmp_path: Path) -> None:
    run = keep_run(tmp_path / "run")
    assert resumed(run).changes() == []
    apply_to_run(str(run), saved_config(str(run)), {"batch.lease": 8})
    apply_to_run(str(run), saved_config(str(run)), {"staleness": 2})
    assert resumed(run).changes() == ["staleness: saved 1, now 2", "batch.lease: saved 16, now 8"]
    assert resumed(run).changes()  # nothing was trained yet
    apply_to_run(str(run), saved_config(str(run)), {"batch.lease": 16})
    assert resumed(run).changes() == ["staleness: saved 1, now 2"]
    resumed(run).save_config()
    assert saved_config(str(run)).staleness == 2
    assert resumed(run).changes() == []


@pytest.mark.slow
def test_a_run_that_is_no_more_on_policy_says_from_which_step_on(lab: Any, capsys: pytest.CaptureFixture[str]) -> None:
    run = lab.train(steps="2", staleness="0").run
    apply_to_run(run, saved_config(run), {"staleness": 1})
    lab.train(resume=run, run=run, steps="3", staleness="1")
    said = capsys.readouterr().err.splitlines()
    assert "other than before: staleness: saved 0, now 1" in said
    noted = json.loads(Path(run, "about.json").read_text())["changes"]
    assert "from step 2 on: staleness: saved 0, now 1" in noted


def test_what_resume_does_not_take_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RLVF_HOME", str(tmp_path / "home"))
    run = keep_run(tmp_path / "run", generate={"fast": 0.5, "slow": 1.5})
    write_config(str(run), TrainConfig(staleness=0))

    def lines(*more: str) -> list[str]:
        main(["plan", "--run", str(run), "--most_stale", "1", *more])
        return [line for line in capsys.readouterr().out.splitlines() if line.startswith("set")]

    for line in lines():
        for option, taken in (("batch.lease", False), ("staleness", True), ("placement.generate", True)):
            assert (f"--resume takes no --{option}" in line) is (f"--{option} " in line and not taken)
    assert any("times; --resume takes no --" in line for line in lines())
    assert not any("--resume" in line for line in lines("--apply"))
