"""What a command on examples says of its run."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from flows.report.summary import finetune_outcome


def test_an_outcome_is_one_line_from_before_to_after() -> None:
    result = {"steps": 3, "seconds": 12.4, "held_out": 40, "before": {"dpo/held_out_loss": 0.7}}
    after = {"dpo/held_out_loss": 0.25, "dpo/held_out_accuracy": 1.0}
    assert finetune_outcome("dpo", "a b", {**result, "after": after}) == (
        "a b: 3 steps in 12 s; on 40 held-out examples: loss 0.700 → 0.250, accuracy 1.000; use it: --policy 'a b'"
    )
    assert (
        finetune_outcome("sft", "run", {**result, "before": {}, "after": {}})
        == "run: 3 steps in 12 s; use it: --policy run"
    )


@pytest.mark.slow
def test_the_learning_rate_that_was_taken_and_how_it_went_are_said(tmp_path: Path) -> None:
    rows = [f'{{"prompt": "add {a} and 3.", "completion": "{a} + 3"}}\n' for a in range(20)]
    (tmp_path / "shown.jsonl").write_text("".join(rows))
    words = ["sft", "--problems", "shown.jsonl", "--steps", "2", "--run", "shown", "--warm_up.steps", "2"]
    asked = [sys.executable, "-c", "from flows.cli import main; main()", *words, "--tracking.system_metrics", "false"]
    home = {"RLVF_HOME": str(tmp_path / "home"), "PYTHONPATH": str(Path(__file__).parents[3])}

    def said() -> "subprocess.CompletedProcess[str]":
        return subprocess.run(asked, capture_output=True, text=True, check=True, cwd=tmp_path, env=os.environ | home)

    done = said()
    run = tmp_path / "home" / "runs" / "shown"
    assert done.stdout == f"{run / 'model'}\n"
    lines = done.stderr.splitlines()
    assert lines.count("optimizer.lr 0.001: for a policy of 0.9M parameters") == 1
    assert next(line for line in lines if line.startswith("rlvf: shown: 2 steps in ")).count(" → ") == 1
    assert f"rlvf: report: {run / 'report.html'}" in lines

    asked[3:] = ["sft", "--resume", "shown"]
    again = said()
    assert again.stdout == done.stdout
    more = "rlvf: shown has made all of its 2 steps; more: rlvf sft --resume shown --steps N"
    assert again.stderr.splitlines() == [more, *lines[-2:]]  # nothing was started
