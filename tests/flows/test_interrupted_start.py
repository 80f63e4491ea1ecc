"""Ctrl-C before a run has begun: while libraries are imported, servers and workers start, the policy is warmed up."""

import signal
import time
from pathlib import Path
from typing import Any

import pytest

from tests.processes import until


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [1.5, 3.0, 5.0, 7.0, 9.0])
def test_it_ends_whenever_it_is_asked_to_and_leaves_nothing(lab: Any, tmp_path: Path, seconds: float) -> None:
    options = lab.options(steps="3000", cluster__scheduler=None, cluster__threads="1", policy="tiny")
    with lab.command("train", options=options, home=tmp_path / "home") as command:
        time.sleep(seconds)
        command.process.send_signal(signal.SIGINT)
        code, out, err = command.finish(120)
        assert (code, out) == (130, ""), err
        assert "Traceback" not in err
        assert "Error" not in err
        until(lambda: not command.alive(), 20, about=lambda: str(command.alive()))
