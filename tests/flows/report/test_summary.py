"""What is said of a run or an evaluation at its end."""

import sys
from pathlib import Path

import numpy as np
import pytest

from flows.report.result import held_out_figures
from flows.report.summary import _audits, _venv, evaluation_outcome
from infra.runs.metric_log import MetricLine
from rl.records import Problem
from tasks.evaluate import Evaluation


def evaluation(step: int, *sets: str, solved: int) -> Evaluation:
    """Of a problem of each set, the first of which are solved."""
    rewards = np.array([[float(row < solved)] for row in range(len(sets))], np.float32)
    return Evaluation.of(step, [Problem(str(row), "", "", set=name) for row, name in enumerate(sets)], rewards, rewards)


def test_an_evaluation_of_several_sets_names_each_with_its_number_of_problems() -> None:
    said = evaluation_outcome(evaluation(3, "a", "a", "b", solved=1))
    assert said.startswith("3 problems, policy v3: reward 0.333 greedy, 0.333 sampled; ")
    assert said.endswith("; a (2): reward 0.500 greedy, 0.500 sampled; b (1): reward 0.000 greedy, 0.000 sampled")
    assert "(2)" not in evaluation_outcome(evaluation(3, "a", "a", solved=1))


def test_figures_that_are_not_of_all_completions_say_so() -> None:
    rewards = np.array([[1.0], [np.nan], [np.nan]], np.float32)
    found = Evaluation.of(3, [Problem(text, "", "") for text in "abc"], rewards, rewards)
    assert evaluation_outcome(found).endswith("; pass@1 1.000, 66.7% could not be judged")
    assert held_out_figures(None, found)["error_rate_after"] == pytest.approx(2 / 3)


def test_the_figures_of_a_result_are_of_all_held_out_problems_and_of_each_set() -> None:
    first, last = evaluation(0, "a", "a", "b", solved=0), evaluation(9, "a", "a", "b", solved=2)
    found = held_out_figures(first, last)
    assert (found["held_out"], found["reward_before"], round(found["reward_after"], 3)) == (3, 0, 0.667)
    assert found["sets"]["a"]["problems"] == 2
    assert (found["sets"]["a"]["reward_before"], found["sets"]["a"]["reward_after"]) == (0, 1)
    assert found["sets"]["b"]["reward_after"] == 0
    assert held_out_figures(None, last)["sets"]["a"]["reward_before"] is None
    none = held_out_figures(None, None)
    assert (none["held_out"], none["reward_after"], none["sets"]) == (0, None, {})


def test_a_command_is_named_so_that_it_can_be_typed_where_the_person_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, other = tmp_path / "project" / ".venv" / "bin" / "rlvf", tmp_path / "other" / "rlvf"
    for each in (own, other):
        each.parent.mkdir(parents=True)
        each.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(own.with_name("python")))
    monkeypatch.setenv("PATH", str(other.parent / "nothing"))
    monkeypatch.chdir(tmp_path / "project")
    assert _venv("A=1 rlvf up") == "A=1 .venv/bin/rlvf up"
    monkeypatch.chdir(other.parent)
    assert _venv("rlvf up") == f"{own} up"  # and no ../project/.venv/bin/rlvf
    monkeypatch.setenv("PATH", str(other.parent))
    assert _venv("rlvf up") == f"{own} up"
    monkeypatch.setenv("PATH", str(own.parent))
    assert _venv("rlvf up") == "rlvf up"


def test_leases_that_were_drawn_for_an_audit_and_had_none_are_told(tmp_path: Path) -> None:
    def row(*steps: tuple[int, int]) -> list[tuple[str, str]]:
        figures = [{"reward/mean": 0.5}, *[{"audit/leases": float(a), "audit/missed": float(b)} for a, b in steps]]
        lines = [MetricLine(step, 1, of).dumps() + "\n" for step, of in enumerate(figures)]
        (tmp_path / "metrics.jsonl").write_text("".join(lines))
        return _audits(tmp_path / "metrics.jsonl")

    assert row() == row((20, 0)) == []
    ((name, text),) = row((12, 0), (8, 3))
    assert name == "audits"
    assert text.startswith("20 of 23 leases that were drawn; 3 left out: newer weights had come, or nobody else could")
    assert row((0, 4))[0][1].startswith("0 of 4 leases that were drawn; 4 left out")
