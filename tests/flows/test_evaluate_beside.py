"""Evaluations beside a run: of one that trains meanwhile, and in its log."""

import errno
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from infra.storage import place
from infra.weights.version import published
from tasks.evaluate import evaluate
from tests.processes import until

pytestmark = pytest.mark.slow


def points(lab: Any, run: Path, metric: str) -> list[Any]:
    mlflow, logged = lab.mlflow(run)
    return list(mlflow.get_metric_history(logged.info.run_id, metric))


def test_what_is_asked_otherwise_than_the_run_asks_itself_has_another_name_in_its_log(
    lab: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = lab.problems.read_text().splitlines(keepends=True)
    (tmp_path / "own.csv").write_text("".join([*rows[:1], *rows[-8:]]))
    own = str(tmp_path / "own.csv")
    run = Path(lab.train(steps="1", evals=f"[{{path: {own}}}]").run)
    metric = "eval/own/reward_sampled"
    logged = sorted((point.step, point.value) for point in points(lab, run, metric))
    assert [step for step, _ in logged] == [0, 1]
    lab.evaluate(policy=run.name, problems=own)
    again = [(point.step, point.value) for point in points(lab, run, metric)]
    assert sorted(again) == sorted([*logged, logged[1]])  # the same question has the same answer
    assert "logged as" not in capsys.readouterr().err
    for otherwise in ({"sampling__max_tokens": "3"}, {"samples": "2"}, {"policy__dtype": "bfloat16"}):
        lab.evaluate(policy=run.name, problems=own, **otherwise)
        (name,) = re.findall(r"logged as (eval/own-[0-9a-f]{8}): eval/own is what", capsys.readouterr().err)
        assert [point.step for point in points(lab, run, f"{name}/reward_sampled")] == [1]
        assert len(points(lab, run, metric)) == 3


def test_a_run_that_trains_meanwhile_is_evaluated_at_one_version(lab: Any) -> None:
    run = lab.run_folder(lab.new_name())
    training = {
        "run": run.name,
        "steps": "400",
        "checkpoint__every": "20",
        "batch__prompts": "2",
        "batch__samples": "2",
    }
    asked = {"policy": run.name, "problems": str(lab.problems), "held_out": "0", "samples": "16"}
    with lab.command("train", options=lab.options(**training)) as trainer:
        until(lambda: 3 in lab.metrics(run, "reward/mean"))
        found = lab.evaluate(**asked)
        assert trainer.process.poll() is None, trainer.finish()
        assert max(lab.metrics(run, "reward/mean")) > found.step + 4  # without a pin it would be gone by then
        until(lambda: found.step not in published(str(run)))
    assert found.problems == 100
    assert list((run / "pins").iterdir()) == []


def test_an_evaluation_of_a_run_that_is_removed_meanwhile_does_not_bring_it_back(
    lab: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(lab.train(steps="1").run)

    def removed(*given: Any, **named: Any) -> Any:
        found = evaluate(*given, **named)
        shutil.rmtree(run)
        return found

    monkeypatch.setattr("flows.evaluate.evaluate", removed)
    assert lab.evaluate(policy=run.name, problems=str(lab.problems), held_out="4").problems == 4
    assert f"{run.name} was removed meanwhile: its evaluation is not kept" in capsys.readouterr().err
    assert not run.exists()


def test_a_run_that_may_only_be_read_is_evaluated_and_keeps_nothing(
    lab: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(lab.train(steps="1").run)
    write = place.write_text

    def refused(uri: str, text: str) -> None:
        if uri.startswith(str(run)):
            raise OSError(errno.EROFS, os.strerror(errno.EROFS), uri)
        write(uri, text)

    monkeypatch.setattr(place, "write_text", refused)
    monkeypatch.setattr("flows.start.runs.os.access", lambda path, _: Path(path) != run)
    there = sorted(run.rglob("*"))
    found = lab.evaluate(policy=run.name, samples="2", held_out="0")
    assert found.problems == 100
    assert sorted(run.rglob("*")) == there
    assert f"{run.name} may only be read: its evaluation is not kept with it" in capsys.readouterr().err
    (kept,) = (lab.home / "runs").glob(f"{run.name}-*/eval-*.jsonl")
    assert "/pass_at_1" in kept.read_text()
