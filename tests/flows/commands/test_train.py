"""`rlvf train`: what it says when it is stopped, and of a run that has nothing left to do."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.cli import main
from flows.commands import train
from flows.config import TrainConfig
from flows.report.result import held_out_figures
from flows.start.lineage import save_problems
from flows.start.runs import Run
from flows.start.tracked import save_mlflow_run
from infra.storage import place
from rl.judging import BrokenVerifierError
from tasks.sets.problem_set import open_problems

pytestmark = pytest.mark.usefixtures("own_signals_and_environment")


def test_the_command_to_go_on_with_can_be_pasted_whatever_the_run_is_called(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any) -> None:
        Run(str(tmp_path / "home" / "runs" / "my run ü"), TrainConfig(), resumed=False).save_config()
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "in_workplace", interrupted)
    with pytest.raises(SystemExit):
        main(["train", "--run", "my run ü"])
    assert capsys.readouterr().err == "rlvf: stopped; go on with: rlvf train --resume 'my run ü'\n"
    assert refused("train", "--run", "my run ü") == (
        "run 'my run ü' exists; go on with it by --resume 'my run ü', or name another"
    )


def test_a_run_goes_on_without_the_model_that_it_started_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(train, "in_workplace", interrupted)
    model = str(tmp_path / "gone")
    for name, base in (("mine", "stored"), ("other", "public")):
        config = TrainConfig.model_validate({"policy": {"model": model}, "sync": {"base": base}})
        run = Run(str(tmp_path / "home" / "runs" / name), config, resumed=False)
        run.save_config()
        save_problems(run.uri, open_problems(config.sets, config.verifier, config.held_out, config.seed))
    with pytest.raises(SystemExit):
        main(["train", "--resume", "mine"])
    assert capsys.readouterr().err == "rlvf: stopped; go on with: rlvf train --resume mine\n"
    with pytest.raises(SystemExit):
        main(["train", "--resume", "other"])  # every machine loads it
    assert f"policy.model '{model}': there is no such folder" in capsys.readouterr().err


def test_a_run_whose_verifier_fails_says_how_to_go_on_once_it_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failed(*_: Any) -> None:
        Run(str(tmp_path / "home" / "runs" / "mine"), TrainConfig(), resumed=False).save_config()
        raise BrokenVerifierError("no completion of step 2 could be judged: my_reward.py:8: KeyError: 'sum'")

    monkeypatch.setattr(train, "in_workplace", failed)
    monkeypatch.setenv("RLVF_HOME", str(tmp_path / "home"))
    with pytest.raises(SystemExit):
        main(["train", "--run", "mine"])
    assert capsys.readouterr().err.splitlines() == [
        "rlvf: stopped; when the verifier works again, go on with: rlvf train --resume mine",
        "rlvf: no completion of step 2 could be judged: my_reward.py:8: KeyError: 'sum'",
    ]


def test_a_run_is_named_before_torch_is_imported_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setitem(sys.modules, "flows.train", None)
    with pytest.raises(ImportError):
        train._train(Run("s3://bucket/mine", TrainConfig(), resumed=False), SimpleNamespace(say=said.append))  # type: ignore[arg-type]
    assert said == ["run s3://bucket/mine"]


def test_of_a_finished_run_it_says_so_and_starts_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def starts(*_: Any) -> None:
        raise NotADirectoryError("started")

    monkeypatch.setattr(train, "prepare_workplace", starts)
    run = Run(str(tmp_path / "home" / "runs" / "mine"), TrainConfig(steps=3), resumed=False)
    run.save_config()
    ended = {name: 0.5 for name in held_out_figures(None, None) if name not in ("held_out", "sets")}
    unsaid = dict.fromkeys(("report", "best", "flow_run_id"))
    ended |= {"run": run.uri, "steps": 3, "held_out": 9, "sets": {}, "rollouts_per_second": 8.0, "seconds": 7.0}
    ended |= {
        "stages": {},
        "lost": {},
        "limit": "",
        "picture": "reward.png",
        "checkpoint": f"{run.uri}/model",
        **unsaid,
    }
    place.write_text(f"{run.uri}/result.json", json.dumps({**ended, "page": {"command": None, "url": "http://h/#/1"}}))
    place.write_text(f"{run.uri}/about.json", '{"status": "finished"}')
    place.write_text(f"{run.uri}/model/config.json", "{}")

    def goes_on(*words: str) -> bool:
        with pytest.raises(SystemExit):
            main(["train", "--resume", "mine", *words])
        return "started" in capsys.readouterr().err

    assert goes_on()  # MLflow has not all of it
    save_mlflow_run(run.uri, "0123abcd", told=True)
    main(["train", "--resume", "mine"])
    said = capsys.readouterr()
    assert said.err == "rlvf: mine has made all of its 3 steps; more: rlvf train --resume mine --steps N\n"
    assert said.out.startswith("run         mine: 3 steps; 7 s")
    main(["train", "--resume", "mine", "--json"])
    assert json.loads(capsys.readouterr().out)["reward_after"] == 0.5
    assert goes_on("--steps", "4")
    assert goes_on("--tracking.report", "false")
    place.write_text(f"{run.uri}/about.json", '{"status": "running"}')  # a session with other settings that was killed
    assert goes_on()
