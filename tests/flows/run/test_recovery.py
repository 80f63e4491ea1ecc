"""What a flow goes on after, and for how long."""

import io
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from rich.console import Console

from flows.config import TrainConfig
from flows.run import evaluations
from flows.run.display import Display
from flows.run.hold import Hold
from flows.run.prefect_session import PrefectSession
from flows.run.recovery import Progress, with_recovery
from flows.run.workplace import Workplace, open_workplace
from flows.start.runs import Run
from infra.cluster.cluster_config import ClusterConfig
from infra.cluster.placement import PlacementConfig
from infra.cluster.training_lock import training, training_lock
from infra.dispatch.calls import PoisonedCallError, SchedulerLostError, TakeoverError
from infra.dispatch.dispatch import Dispatch
from infra.weights.version import PolicyVersion
from tasks.batch.failures import Failures
from tasks.calls.trained import StepsLostError
from tests.conftest import free_port
from tests.processes import until


@pytest.fixture
def said() -> io.StringIO:
    return io.StringIO()


@pytest.fixture
def workplace(lab: Any, said: io.StringIO) -> Iterator[Workplace]:
    display = Display(Console(file=said, width=500))
    with Dispatch(lab.client, PlacementConfig()) as dispatch, display:
        prefect = PrefectSession(lab.home, display.say)
        yield Workplace(lab.home, display, dispatch, Failures(display.say), str(lab.home), prefect)


def test_a_trainer_that_is_lost_at_the_same_step_each_time_ends_the_run(workplace: Workplace) -> None:
    progress, begun = Progress(), []

    def work(now: Workplace) -> str:
        begun.append(now.dispatch)
        now.dispatch.stop()  # as a run does when it ends with an error
        progress.made(7)  # made again each time
        raise StepsLostError("version 7 is lost")

    with pytest.raises(PoisonedCallError, match=r"^train: 3 workers died"):
        with_recovery(workplace, ClusterConfig(), work, progress=progress)
    assert len(begun) == len(set(map(id, begun))) == workplace.dispatch.attempts == 3


def test_a_run_that_gets_further_each_time_goes_on(workplace: Workplace, said: io.StringIO) -> None:
    progress = Progress()
    steps = iter(range(6, 16))

    def work(now: Workplace) -> str:
        step = next(steps)
        progress.made(step)
        assert now.dispatch.run("verify", int, "3") == 3
        if step < 15:
            raise (StepsLostError(f"version {step} is lost"), TakeoverError("train: trainer is gone"))[step % 2]
        return "done"

    assert with_recovery(workplace, ClusterConfig(), work, progress=progress) == "done"
    assert "version 6 is lost; going on from what is saved" in said.getvalue()
    assert "train: trainer is gone; going on from what is saved" in said.getvalue()


def test_a_run_that_goes_on_in_place_keeps_its_turn_until_it_ends(
    lab: Any, workplace: Workplace, tmp_path: Path
) -> None:
    """Of three tries, while another run waits since the first."""
    events: list[str] = []
    run = Run(str(tmp_path / "mine"), TrainConfig(), resumed=True)

    def other() -> None:
        with (
            Client(lab.client.scheduler.address, set_as_default=False, security=lab.client.security) as client,
            training_lock(client, "other", events.append),
        ):
            events.append("other")

    waiting = threading.Thread(target=other)

    def work(now: Workplace) -> str:
        with Hold(run, now) as hold:
            hold.check()
            events.append("mine")
            if not waiting.is_alive():
                waiting.start()
            until(lambda: "waiting: mine trains on this cluster" in events)
            if events.count("mine") < 3:
                raise (StepsLostError("version 7 is lost"), TakeoverError("train: trainer is gone"))[len(events) % 2]
        events.append("ended")
        return "done"

    try:
        assert with_recovery(workplace, ClusterConfig(), work, progress=Progress()) == "done"
    finally:
        waiting.join(60)
    assert events.index("other") > [at for at, event in enumerate(events) if event == "mine"][-1]
    assert [event for event in events if event not in ("other", "ended")] == [
        *("mine", "waiting: mine trains on this cluster", "mine", "mine")
    ]


def test_a_turn_that_was_kept_is_given_back_where_nothing_goes_on(workplace: Workplace, tmp_path: Path) -> None:
    run = Run(str(tmp_path / "mine"), TrainConfig(), resumed=True)
    tries = []

    def work(now: Workplace) -> str:
        tries.append(training(workplace.dispatch.client))
        if len(tries) > 1:
            raise ValueError("before it holds anything")
        with Hold(run, now):
            raise StepsLostError("version 7 is lost")

    with pytest.raises(ValueError, match="before it holds anything"):
        with_recovery(workplace, ClusterConfig(), work)
    assert tries == [None, "mine"]
    assert training(workplace.dispatch.client) is None
    with training_lock(workplace.dispatch.client, "other", str):  # it is free
        assert training(workplace.dispatch.client) == "other"


def test_a_flow_within_another_leaves_it_to_that_one(workplace: Workplace) -> None:
    tries: list[str] = []

    def inner(_: Workplace) -> str:
        tries.append("inner")
        if len(tries) < 4:
            raise StepsLostError("version 7 is lost")
        return "done"

    def outer(now: Workplace) -> str:
        tries.append("outer")
        with open_workplace(ClusterConfig(), PlacementConfig()) as present:  # what an inner flow opens
            assert present.dispatch is now.dispatch
        return with_recovery(now, ClusterConfig(), inner)

    assert with_recovery(workplace, ClusterConfig(), outer) == "done"
    assert tries == ["outer", "inner"] * 2


def test_an_interrupt_ends_the_wait_for_a_scheduler(workplace: Workplace, said: io.StringIO) -> None:
    nobody = ClusterConfig(scheduler=f"tcp://127.0.0.1:{free_port()}")

    def work(_: Workplace) -> str:
        raise SchedulerLostError("generate")

    def interrupt() -> None:
        until(lambda: "waiting for it" in said.getvalue())
        time.sleep(2)  # it looks for the scheduler meanwhile
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            with_recovery(workplace, nobody, work)
    finally:
        interrupting.join()


@pytest.mark.slow
def test_a_run_that_goes_on_in_its_last_evaluation_still_knows_what_its_steps_took(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    evaluate, lost = evaluations.evaluate, []

    def once(dispatch: Dispatch, spec: Any, policy: PolicyVersion, *of: Any) -> Any:
        if policy.step == 2 and not lost:
            lost.append(policy)
            raise TakeoverError("train: trainer is gone")
        return evaluate(dispatch, spec, policy, *of)

    monkeypatch.setattr(evaluations, "evaluate", once)
    began = time.perf_counter()
    # without max_tokens, which is chosen when a run begins and was not given when it goes on
    result = lab.train(steps="2", sampling__max_tokens=None)
    took = time.perf_counter() - began
    assert lost
    assert result.steps == 2
    assert result.reward_after is not None
    assert 2 * 16 / took < result.rollouts_per_second  # of two steps, whose completions are those of 4 problems or more
    assert result.stages["between"] < 0.9
    assert sum(result.stages.values()) == pytest.approx(1, abs=0.01)
    assert 0 < result.seconds < took
