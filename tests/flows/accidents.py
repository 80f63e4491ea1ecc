"""Accidents of a run, and whether every step was made and logged once in spite of them."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any

from tests.processes import until

STEPS = 14


def check_steps(lab: Any, run: Path, steps: int = STEPS, home: Path | None = None) -> None:
    """Every step was made once and logged once, on disk and in MLflow."""
    every = list(range(1, steps + 1))
    used = lab.metrics(run, "groups/used")
    assert list(used) == every
    assert list(lab.metrics(run, "loss/policy")) == every
    assert list(lab.metrics(run, "eval/pass_at_1"))[:: len(lab.metrics(run, "eval/pass_at_1")) - 1] == [0, steps]
    learner = json.loads((run / "state" / str(steps) / "learner.json").read_text())
    assert learner["step"] == steps
    assert learner["optimizer_steps"] == sum(groups > 0 for groups in used.values()) > 0
    mlflow, logged = lab.mlflow(run, home)
    assert logged.info.status == "FINISHED"
    for name in ("reward/mean", "groups/used"):
        assert [point.step for point in mlflow.get_metric_history(logged.info.run_id, name)] == every


def kill_in_call(
    lab: Any, worker: str, call: str, run: Path, after: int, before: Callable[[], object] = lambda: None
) -> None:
    """Kill a worker while a call of this kind is on it, once step `after` is logged; it stands still while `before` is
    called."""
    address, pid = lab.worker(worker)

    def is_on_it() -> bool:
        keys = lab.client.processing(workers=[address]).get(address, ())
        return any(str(key).startswith(f"{call}-") for key in keys)

    until(lambda: after in lab.metrics(run, "groups/used"))
    # "verify" takes no time: a worker that stands still gets one and keeps it
    kill_when(pid, is_on_it, before, moves=call != "verify")


def kill_when(
    pid: int, is_at_it: Callable[[], bool], before: Callable[[], object] = lambda: None, *, moves: bool = True
) -> None:
    """Kill a process while it is at something. It stands still while `before` is called; and, unless it `moves`, from
    before it is at it."""
    try:
        while True:
            if moves:
                until(is_at_it, every=0.001)
            os.kill(pid, SIGSTOP)
            if not moves:
                until(is_at_it)
            if is_at_it() and is_at_it():  # what it sent before it stood still has come in by now
                before()
                break
            os.kill(pid, SIGCONT)
    finally:  # also when it waited too long, so that the run ends
        os.kill(pid, SIGKILL)
