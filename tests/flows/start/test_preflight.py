"""What is refused before anything starts: runs and models that are not there."""

import subprocess
import sys
from pathlib import Path

import pytest

from flows.config import TrainConfig
from flows.start.preflight import check_model
from flows.start.runs import Run, known_run
from infra.runs.checkpoints import NotARun
from tests.conftest import free_port
from tests.flows.start.model_hub import Hub, use_hub

RUN = "from flows.cli import main; main()"


def test_a_mistyped_run_is_one_line_with_the_nearest_names(hub: Hub, home_folder: Path, tmp_path: Path) -> None:
    for name in ("20260101-120000-tiny", "20260102-130000-tiny", "other"):
        Run(str(home_folder / "runs" / name), TrainConfig(), resumed=False).save_config()
    runs = str(home_folder / "runs")
    with pytest.raises(
        NotARun, match=r"there is nothing; did you mean 20260101-120000-tiny or 20260102-130000-tiny\?$"
    ):
        known_run("20260101-12000-tiny", runs)
    with pytest.raises(
        NotARun, match=r"there is nothing; the newest runs are other, 20260102-130000-tiny, 20260101-120000-tiny$"
    ):
        known_run("zzz", runs)
    ended = subprocess.run(
        [sys.executable, "-c", RUN, "eval", "--policy", "20260101-12000-tiny"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr.count("\n") == 1
    assert ended.stderr.startswith(
        f"rlvf: policy.model '20260101-12000-tiny': there is no run {runs}/20260101-12000-tiny, and http://127.0.0.1:"
    )
    assert ended.stderr.endswith("; did you mean 20260101-120000-tiny or 20260102-130000-tiny?\n")
    assert hub.asked == ["20260101-12000-tiny"]  # and not again and again


def test_a_hub_that_is_away_is_one_line_and_no_retries(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    use_hub(monkeypatch, f"http://127.0.0.1:{free_port()}", tmp_path / "cache")
    ended = subprocess.run(
        [sys.executable, "-c", RUN, "train", "--policy", "no/such"], cwd=tmp_path, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert "Connection refused" in ended.stderr
    assert ended.stderr.endswith("offline? then name a folder that holds one\n")
    assert not (tmp_path / "home").exists()


def test_a_run_is_no_policy_to_train(hub: Hub, home_folder: Path) -> None:
    run = home_folder / "runs" / "mine"
    Run(str(run), TrainConfig(), resumed=False).save_config()
    with pytest.raises(ValueError, match=rf"is a run, whose policy is the folder {run}/model$"):
        check_model("mine", str(home_folder / "runs"))
    assert hub.asked == ["mine"]
