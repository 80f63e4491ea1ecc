"""`rlvf train`: what it says when it is stopped."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from flows.commands import train
from flows.config import TrainConfig
from flows.start.runs import Run

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
