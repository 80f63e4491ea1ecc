"""What is said of a run before it begins, or goes on."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest

from flows.config import TrainConfig
from flows.run.chosen import chosen_run


def said(folder: Path, resume: str | None = None, *, generators: int = 2, **given: object) -> list[str]:
    lines: list[str] = []
    workplace = SimpleNamespace(
        runs=str(folder),
        display=SimpleNamespace(say=lines.append),
        dispatch=SimpleNamespace(client=None),
    )
    config = TrainConfig.model_validate({"run": "mine", **given})
    with patch("flows.run.chosen.workers_with", lambda *_: [f"tcp://{n}" for n in range(generators)]):
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


@pytest.mark.parametrize(
    ("staleness", "optimizer", "advised"), [(4, {}, "0.00015"), (4, {"lr": 1e-4}, ""), (2, {}, "0.00021"), (0, {}, "")]
)
def test_a_run_that_goes_on_with_more_staleness_is_told_the_rate_that_a_new_one_would_have(
    home_folder: Path, staleness: int, optimizer: dict[str, float], advised: str
) -> None:
    runs = home_folder / "runs"
    assert "optimizer.lr 0.0003: for a policy of" in " ".join(said(runs, staleness=1))
    lines = [
        line
        for line in said(runs, "mine", staleness=staleness, optimizer=optimizer)
        if line.startswith("warning: optimizer.lr")
    ]
    assert lines == (
        [
            f"warning: optimizer.lr 0.0003 is that of staleness 1, and batches of up to {staleness} versions ago need "
            f"smaller steps; give --optimizer.lr {advised}"
        ]
        if advised
        else []
    )


def test_audits_that_nobody_can_make_are_said_where_they_are_asked_for(home_folder: Path) -> None:
    runs, half = home_folder / "runs", {"share": 0.5}
    line = "audit.share 0.5: no generator is audited until another one is there"
    assert line not in said(runs, generators=2, audit=half)
    assert said(runs, "mine", generators=1) == [line]
    assert said(runs, "mine", generators=1, audit={"share": 0}) == []
    served = {"audit": half, "policy": {"engine": "http://127.0.0.1:8000"}}
    assert said(runs, "mine", generators=2, **served) == [
        "audit.share 0.5: a server (policy.engine) does not score for audits, so that there are none"
    ]


def test_of_audits_that_are_made_by_default_nothing_is_said(home_folder: Path) -> None:
    assert not [line for line in said(home_folder / "runs", generators=1) if line.startswith("audit")]
