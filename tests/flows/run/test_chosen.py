"""What is said of a run before it begins, or goes on."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from flows.config import TrainConfig
from flows.run.chosen import chosen_run


def said(folder: Path, resume: str | None = None, **given: object) -> list[str]:
    lines: list[str] = []
    workplace = SimpleNamespace(runs=str(folder), display=SimpleNamespace(say=lines.append))
    config = TrainConfig.model_validate({"run": "mine", **given})
    run = chosen_run(config, resume, cast("Any", workplace))
    if resume is None:
        run.save_config()
    return lines


def test_an_option_without_effect_is_said_when_a_run_begins_and_when_it_goes_on(home_folder: Path) -> None:
    runs = home_folder / "runs"
    line = "lease.seconds 5: at staleness 0 a lease has batch.lease prompts, so that it does nothing"
    assert line in said(runs, staleness=0, lease={"seconds": 5})
    assert said(runs, "mine") == [line]
    assert said(runs, "mine", staleness=1) == []
