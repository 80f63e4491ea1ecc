"""Two processes and one run, with the real commands and real signals."""

import shutil
import sqlite3
import time
from contextlib import closing
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any

import psutil
import pytest

from infra.storage import lock, store
from tests.processes import until


def contents(run: Path) -> dict[str, bytes]:
    """What a run holds, apart from signs of life."""
    found = {}
    for path in sorted(run.rglob("*")):
        if path.is_file() and path.parent.name != "lock" and ".tmp" not in str(path):
            found[str(path.relative_to(run))] = path.read_bytes()
    return found


@pytest.mark.slow
def test_one_run_has_one_trainer_whoever_sleeps_meanwhile(
    lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = lab.fresh_home(tmp_path / "home")
    run = home / "runs" / "shared"
    options = lab.options(run=run.name, steps="500", cluster__scheduler=None, cluster__threads="1")
    with lab.command("train", options=options, home=home, **lab.access) as first:
        until(lambda: 2 in lab.metrics(run, "groups/used") or first.process.poll() is not None)
        with lab.command("train", "--resume", run.name, options={}, home=home) as second:
            code, out, err = second.finish(120)
        assert (code, out) == (2, "")
        (line,) = err.strip().splitlines()
        assert f"{run} is in use by " in line
        assert f"(process {first.process.pid}) since 20" in line
        assert first.process.poll() is None
        flow_run = (run / "flow_run.txt").read_text()
        assert lab.api(f"flow_runs/{flow_run}")["state"]["type"] == "RUNNING"

        stopped_out_of_a_transaction(first, home / "mlflow.db")
        monkeypatch.setattr(lock, "DEAD_SECONDS", 3.0)
        reached = max(store.versions(str(run / "state"))) + 3
        lab.train(resume=str(run), home=home, steps=str(reached))
        after = contents(run)
        first.signal_group(SIGCONT)
        began = time.monotonic()
        code, out, err = first.finish(120)
        assert (code, out) == (1, ""), err
        assert time.monotonic() - began < 100
        assert err.strip().splitlines()[-1].startswith(f"rlvf: {run} was taken over by another process")
        assert "Traceback" not in err
        assert contents(run) == after
    assert max(store.versions(str(run / "state"))) == reached
    assert list(lab.metrics(run, "groups/used")) == list(range(1, reached + 1))
    mlflow, logged = lab.mlflow(run, home)
    assert logged.info.status == "FINISHED"
    for name in ("reward/mean", "groups/used"):
        steps = [point.step for point in mlflow.get_metric_history(logged.info.run_id, name)]
        assert steps == list(range(1, reached + 1))


@pytest.mark.slow
def test_a_run_that_is_removed_ends_in_a_line_and_leaves_it_to_who_begins_it_anew(lab: Any) -> None:
    run = lab.run_folder(lab.new_name())
    with lab.command("train", options=lab.options(run=run.name, steps="5000")) as first:
        until(lambda: 2 in lab.metrics(run, "groups/used") or first.process.poll() is not None)
        assert first.process.poll() is None
        removed(run)
        code, out, err = first.finish(120)
        assert (code, out) == (1, ""), err
        assert err.strip().splitlines()[-1].startswith(f"rlvf: {run} was removed while this process trained it")
        assert "Traceback" not in err
    assert [str(path) for path in run.rglob("*") if path.is_file()] == []


def stopped_out_of_a_transaction(command: Any, database: Path) -> None:
    """Stopped within one, it would keep everybody else out of the database for as long as it sleeps."""
    process = psutil.Process(command.process.pid)

    def stopped() -> bool:
        command.signal_group(SIGSTOP)
        until(lambda: process.status() == psutil.STATUS_STOPPED)
        with closing(sqlite3.connect(database, timeout=0, isolation_level=None)) as connection:
            try:
                connection.execute("BEGIN IMMEDIATE")
            except sqlite3.OperationalError:
                command.signal_group(SIGCONT)
                return False
        return True

    until(stopped)


def removed(run: Path) -> None:
    """As `rm -r` does, as often as a file comes in between."""
    while run.exists():
        shutil.rmtree(run, ignore_errors=True)
