"""What is asked for on Prefect's page: pause and resume, cancel, start again."""

import math
import threading
import time
from collections.abc import Callable
from pathlib import Path
from signal import SIGINT
from subprocess import PIPE
from typing import Any

import pytest
from prefect.flow_engine import run_flow
from prefect.states import Scheduled

from flows.config import TrainConfig
from flows.options.reading import read_config
from flows.run.page import CancelledOnPage
from flows.train import train
from infra.cluster.training_lock import training_lock
from infra.storage.claim import Claim
from infra.storage.lock import acquire
from tests.processes import until

pytestmark = pytest.mark.slow


def set_state(lab: Any, identity: str, kind: str) -> Any:
    asked = lab.api(f"flow_runs/{identity}/set_state", {"state": {"type": kind, "name": kind.capitalize()}})
    assert asked["status"] == "ACCEPT", asked
    return asked


def flow_run_named(lab: Any, name: str) -> Any:
    found = lab.api("flow_runs/filter", {"flow_runs": {"name": {"any_": [name]}}})
    return found[0] if found and found[0]["state"]["type"] == "RUNNING" else None


class Running:
    """A run in a thread of its own."""

    def __init__(self, lab: Any, **changes: str) -> None:
        self.lab, self.name = lab, lab.new_name()
        self.run = lab.run_folder(self.name)
        self.result: Any = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._train, args=(changes,))
        self._thread.start()
        until(lambda: 2 in lab.metrics(self.run, "groups/used") or self.error)
        self.identity = until(lambda: flow_run_named(lab, self.name))["id"]

    def _train(self, changes: dict[str, str]) -> None:
        try:
            self.result = self.lab.train(run=self.name, **changes)
        except BaseException as error:  # noqa: BLE001 - whatever ends the run is what the test looks at
            self.error = error

    def join(self, seconds: float = 60) -> None:
        self._thread.join(seconds)
        assert not self._thread.is_alive()

    def state(self) -> str:
        return str(self.lab.api(f"flow_runs/{self.identity}")["state"]["type"])


def quiet(lab: Any, seconds: float) -> Callable[[], bool]:
    """Whether no worker has had anything to do for so long."""
    since = [math.inf]

    def is_quiet() -> bool:
        busy = any(lab.client.processing().values())
        since[0] = math.inf if busy else min(since[0], time.monotonic())
        return time.monotonic() - since[0] > seconds

    return is_quiet


def test_a_paused_run_holds_still_and_goes_on(lab: Any) -> None:
    running = Running(lab, steps="30")
    set_state(lab, running.identity, "PAUSED")
    until(quiet(lab, seconds=1), seconds=60)
    reached = max(lab.metrics(running.run, "groups/used"))
    assert reached < 30
    assert lab.api(f"flow_runs/{running.identity}/resume", {})["status"] == "ACCEPT"
    running.join()
    assert running.error is None, running.error
    assert running.result.steps == 30
    assert running.result.lost == {}  # what was taken back was not lost
    assert list(lab.metrics(running.run, "groups/used")) == list(range(1, 31))
    assert running.state() == "COMPLETED"


@pytest.mark.parametrize("paused", [pytest.param(False, marks=pytest.mark.slow), True])
def test_a_cancelled_run_stops_at_once_and_can_be_resumed(lab: Any, paused: bool) -> None:
    running = Running(lab, steps="400")
    if paused:
        set_state(lab, running.identity, "PAUSED")
        until(quiet(lab, seconds=0.5), seconds=60)
    set_state(lab, running.identity, "CANCELLING")
    running.join()
    assert max(lab.metrics(running.run, "groups/used")) < 400
    assert isinstance(running.error, CancelledOnPage)
    assert running.state() == "CANCELLED"
    _, logged = lab.mlflow(running.run)
    assert logged.info.status == "KILLED"
    reached = max(lab.metrics(running.run, "groups/used"))
    lab.train(resume=str(running.run), steps=str(reached + 2))  # one more than the trainer may have made unlogged
    assert list(lab.metrics(running.run, "groups/used")) == list(range(1, reached + 3))


def test_another_flow_run_does_not_go_on_with_the_run_of_that_name(lab: Any) -> None:
    first = lab.train(steps="1")
    before = {path: path.read_bytes() for path in Path(first.run).rglob("*.*") if path.is_file()}
    with pytest.raises(ValueError, match=r"exists; go on with it by resume: "):
        lab.train(run=first.run, steps="2")
    assert {path: path.read_bytes() for path in Path(first.run).rglob("*.*") if path.is_file()} == before


def test_a_run_that_prefect_starts_again_goes_on_where_it_stopped(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.settle()
    with lab.prefect() as client:
        flow_run = client.create_flow_run(train, parameters={"config": {}, "resume": None})

        def execute(steps: int) -> Any:
            config = read_config(TrainConfig, file=None, overrides=lab.options(steps=str(steps)))
            known = client.read_flow_run(flow_run.id)
            return run_flow(train, flow_run=known, parameters={"config": config, "resume": None})

        first = execute(2)
        client.set_flow_run_state(flow_run.id, Scheduled(), force=True)  # as the page does when asked to retry
        lock = acquire(first.run, str)
        lock.train_in(str(flow_run.id))
        lock._over.set()  # as if the first one had been killed: no heartbeat, no release
        monkeypatch.setattr(Claim, "is_gone", True)
        again = execute(4)
        assert again.run == first.run
        assert client.read_flow_run(flow_run.id).state.is_completed()
        assert again.flow_run_id == first.flow_run_id
        assert client.read_flow_run(flow_run.id).name == Path(first.run).name
        assert str(flow_run.id)[:6] in Path(first.run).name  # of several that began in one second each has its own
    assert list(lab.metrics(Path(first.run), "groups/used")) == [1, 2, 3, 4]


@pytest.mark.parametrize("asked", ["the page", "Ctrl-C"])
def test_a_run_that_waits_for_its_turn_ends_when_asked_to_and_leaves_nothing(
    lab: Any, tmp_path: Path, asked: str
) -> None:
    name, err = lab.new_name(), tmp_path / "err"
    lab.settle()
    with (
        err.open("w") as said,
        training_lock(lab.client, "the test", str),
        lab.command("train", options=lab.options(run=name), streams={"stdout": PIPE, "stderr": said}) as command,
    ):
        until(lambda: "waiting: the test trains on this cluster" in err.read_text(), 120, about=err.read_text)
        identity = until(lambda: flow_run_named(lab, name))["id"]
        if asked == "Ctrl-C":
            command.process.send_signal(SIGINT)
        else:
            set_state(lab, identity, "CANCELLING")
        code, out, _ = command.finish(120)
    assert (code, out) == (130 if asked == "Ctrl-C" else 1, "")
    ended = err.read_text()
    assert "Traceback" not in ended
    assert ("rlvf: cancelled on Prefect's page" in ended) == (asked == "the page")
    assert not lab.run_folder(name).exists()
    assert lab.api(f"flow_runs/{identity}")["state"]["type"] == ("CRASHED" if asked == "Ctrl-C" else "CANCELLED")
