"""The scheduler of a joined cluster is killed in mid-run: the flow waits for it and goes on in place."""

import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from flows.run import recovery
from flows.run.page import CancelledOnPage
from infra.dispatch.calls import SchedulerLostError
from tests.conftest import free_port, listens, running_scheduler
from tests.processes import started, until

STEPS = 8


@contextmanager
def machine(lab: Any, address: str, log: Path) -> Iterator[None]:
    """`rlvf worker` with every role, which joins again by itself."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "RLVF_"))}
    with (
        log.open("wb") as out,
        started(
            *(sys.executable, "-c", "from flows.cli import main; main()", "worker", address, "--threads", "1"),
            stdout=out,
            stderr=out,
            env=inherited | {"RLVF_HOME": str(lab.home)},
        ),
    ):
        yield


@pytest.mark.slow
def test_a_run_goes_on_when_the_scheduler_is_back(lab: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    port, name = free_port(), lab.new_name()
    address, run = f"tcp://127.0.0.1:{port}", lab.run_folder(name)
    over = threading.Event()

    def kill_and_start_again() -> None:
        with running_scheduler(tmp_path / "first.log", None, port) as first:
            until(lambda: 3 in lab.metrics(run, "groups/used") or over.is_set(), seconds=300)
            first.process.kill()
        with running_scheduler(tmp_path / "second.log", None, port):
            over.wait(300)

    keeper = threading.Thread(target=kill_and_start_again)
    keeper.start()
    try:
        until(lambda: listens(port), 120)  # a worker that finds nobody at its first look ends with a remedy
        with machine(lab, address, tmp_path / "machine.log"):
            until(lambda: "joined" in (tmp_path / "machine.log").read_text(), 120)
            result = lab.train(
                run=name, steps=str(STEPS), staleness="1", cluster__scheduler=address, sampling__max_tokens=None
            )
    finally:
        over.set()
        keeper.join()
    assert result.steps == STEPS
    said = capsys.readouterr().err
    assert said.count(f"the Dask scheduler at {address} is gone; waiting for it") == 1
    assert f"the Dask scheduler at {address} is back, and so are its workers" in said
    assert "distributed." not in said  # what Dask logs is in dask.log
    every = list(range(1, STEPS + 1))
    assert list(lab.metrics(run, "groups/used")) == list(lab.metrics(run, "loss/policy")) == every
    mlflow, logged = lab.mlflow(run)
    assert logged.info.status == "FINISHED"
    assert [point.step for point in mlflow.get_metric_history(logged.info.run_id, "groups/used")] == every


@contextmanager
def killed_in_an_evaluation(address: str, scheduler: Any, then: Callable[[], object]) -> Iterator[None]:
    """The scheduler dies when a lease of an evaluation is at a worker."""
    over = threading.Event()

    def kill() -> None:
        with Client(address, set_as_default=False) as client:  # type: ignore[no-untyped-call]

            def evaluates() -> bool:
                keys = [str(key) for of in client.processing().values() for key in of]  # type: ignore[no-untyped-call]
                return any(key.startswith("evaluate-") for key in keys) or over.is_set()

            until(evaluates, 200, every=0.002)
        scheduler.process.kill()
        scheduler.process.wait()
        then()

    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(kill)
        try:
            yield
        finally:
            over.set()
            killing.result()  # raises what it has raised


@pytest.mark.slow
def test_an_evaluation_begins_anew_when_the_scheduler_is_back_and_ends_when_it_is_cancelled(
    lab: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    address = f"tcp://127.0.0.1:{port}"
    asked = {"policy": str(lab.policy), "problems": str(lab.problems), "held_out": "90", "samples": "64"}
    schedulers: list[Any] = []
    cancelled: list[str] = []

    def start() -> None:
        schedulers.append(stack.enter_context(running_scheduler(tmp_path / f"{len(schedulers)}.log", None, port)))

    def cancel() -> None:
        of = {"flow_runs": {"state": {"type": {"any_": ["RUNNING"]}}}, "sort": "START_TIME_DESC", "limit": 1}
        (run,) = lab.api("flow_runs/filter", of)
        cancelled.append(run["id"])
        lab.api(f"flow_runs/{run['id']}/set_state", {"state": {"type": "CANCELLING"}, "force": True})

    with ExitStack() as stack:
        start()
        stack.enter_context(machine(lab, address, tmp_path / "machine.log"))
        until(lambda: "joined" in (tmp_path / "machine.log").read_text(), 120)
        with killed_in_an_evaluation(address, schedulers[0], start):
            assert lab.evaluate(**asked, cluster__scheduler=address).problems == 90
        assert f"the Dask scheduler at {address} is back, and so are its workers" in capsys.readouterr().err
        with (
            killed_in_an_evaluation(address, schedulers[1], cancel),
            pytest.raises(CancelledOnPage),
        ):
            lab.evaluate(**asked, cluster__scheduler=address)
        assert lab.api(f"flow_runs/{cancelled[0]}")["state"]["type"] == "CANCELLED"


@pytest.mark.slow
def test_a_scheduler_that_stays_away_ends_the_run_in_one_line(
    lab: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recovery, "PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr(recovery, "SAY_SECONDS", 0.1)
    port, name = free_port(), lab.new_name()
    address, run = f"tcp://127.0.0.1:{port}", lab.run_folder(name)

    def kill(scheduler: Any) -> None:
        until(lambda: 1 in lab.metrics(run, "groups/used") or scheduler.process.poll() is not None, seconds=300)
        scheduler.process.kill()

    with (
        running_scheduler(tmp_path / "only.log", None, port) as scheduler,
        machine(lab, address, tmp_path / "machine.log"),
    ):
        until(lambda: "joined" in (tmp_path / "machine.log").read_text(), 120)
        killer = threading.Thread(target=kill, args=(scheduler,))
        killer.start()
        try:
            with pytest.raises(SchedulerLostError, match=f"{address} is gone for 1 s: cluster.scheduler"):
                lab.train(run=name, steps="200", cluster__scheduler=address)
        finally:
            scheduler.process.kill()
            killer.join()
    assert "waiting for" in capsys.readouterr().err
