"""Whatever is killed, and whenever: the run goes on, or can be gone on with, to the very same weights."""

import os
import random
import re
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from signal import SIGCONT, SIGKILL, SIGSTOP
from typing import Any

import pytest

from flows.run import workplace
from infra.cluster.placement import offers
from infra.dispatch.dispatch import Dispatch
from infra.runs.metric_log import MetricLog, read_metrics
from infra.runs.rollouts import kept_steps
from infra.storage import store
from tests.flows.accidents import STEPS, check_steps, kill_in_call
from tests.processes import started, until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def undisturbed(lab: Any) -> str:
    """The digest of the weights that a run without any accident ends with."""
    result = lab.train(steps=str(STEPS), staleness="0")
    check_steps(lab, Path(result.run))
    return str(lab.weights_digest(Path(result.run), STEPS))


def trained_with_a_killed_worker(
    lab: Any, undisturbed: str, worker: str, call: str, *, after: int, steps: int = STEPS, **options: str
) -> Path:
    """The run, in which a worker was killed in a call after a step, with the same weights at its end."""
    name = lab.new_name()
    run = lab.run_folder(name)
    lab.settle()
    killer = threading.Thread(target=kill_in_call, args=(lab, worker, call, run, after))
    killer.start()
    result = lab.train(run=name, steps=str(steps), staleness="0", **options)
    killer.join()
    assert result.lost == {call: 1}
    check_steps(lab, run, steps)
    assert lab.weights_digest(run, steps) == undisturbed
    return Path(run)


@pytest.mark.parametrize(("worker", "call"), [("generator-0", "generate"), ("verifier-0", "verify")])
def test_a_killed_worker_costs_its_piece_of_work(lab: Any, undisturbed: str, worker: str, call: str) -> None:
    trained_with_a_killed_worker(lab, undisturbed, worker, call, after=3)


def test_a_killed_trainer_costs_its_update(lab: Any) -> None:
    few = 6
    alone = lab.weights_digest(Path(lab.train(steps=str(few), staleness="0").run), few)
    trained_with_a_killed_worker(lab, alone, "trainer", "train", after=3, steps=few)


def test_steps_that_died_with_the_trainer_are_made_again_in_place(
    lab: Any, undisturbed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = trained_with_a_killed_worker(lab, undisturbed, "trainer", "train", after=7, checkpoint__every="5")
    said = capsys.readouterr().err
    assert re.search(r"version [78] is lost with the trainer that had made it; .* is of version 5; going on", said)
    assert re.search(r"the newest checkpoint is of step 5: steps? 6.* made again", said)
    assert kept_steps(str(run)) == list(range(1, STEPS + 1))


def test_another_trainer_takes_over_from_one_that_stopped(
    lab: Any, undisturbed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = lab.new_name()
    run = lab.run_folder(name)
    lab.settle()
    address, pid = lab.worker("trainer")

    def trains(at: str) -> bool:
        return any(str(key).startswith("train-") for key in lab.client.processing(workers=[at]).get(at, ()))

    def stop() -> None:
        until(lambda: 3 in lab.metrics(run, "groups/used"))
        while True:
            until(lambda: trains(address), every=0.002)
            os.kill(pid, SIGSTOP)
            if trains(address) and trains(address):
                return
            os.kill(pid, SIGCONT)

    def states() -> list[int]:
        return list(store.versions(str(run / "state")))

    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(lab.train, run=name, steps=str(STEPS), staleness="0")
        try:
            stop()
            with dask_worker(lab, "TRAINER=1 CPU=1", "--name", "spare"):
                reached = states()[-1]
                until(lambda: training.done() or states()[-1] >= reached + 2, 240)
                os.kill(pid, SIGCONT)  # it goes on with the update that it had begun, and may not save it
                result = training.result(240)
                assert states() == [STEPS - 1, STEPS]
        finally:
            os.kill(pid, SIGCONT)
    assert result.steps == STEPS
    said = capsys.readouterr().err
    assert re.search(r"train: trainer has given no sign of life for \d+ s; going on from what is saved", said), said
    check_steps(lab, run)
    assert lab.weights_digest(run, STEPS) == undisturbed
    until(lambda: len(offers(lab.client)) == 3)


@contextmanager
def dask_worker(lab: Any, resources: str, *words: str) -> Iterator[subprocess.Popen[str]]:
    """One that nobody's nanny starts again."""
    command = ["--nthreads", "1", "--no-nanny", "--no-dashboard", "--resources", resources, *words]
    one_thread = os.environ | {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # as the others: sums depend on it
    scheduler = lab.client.scheduler.address
    with started(sys.executable, "-m", "distributed.cli.dask_worker", scheduler, *command, env=one_thread) as worker:
        yield worker


def test_a_run_that_is_ahead_of_itself_survives_them_all(lab: Any) -> None:
    name = lab.new_name()
    run = lab.run_folder(name)
    lab.settle()
    killed = [("trainer", "train", 2), ("generator-0", "generate", 3), ("verifier-0", "verify", 5)]
    killers = [threading.Thread(target=kill_in_call, args=(lab, who, call, run, at)) for who, call, at in killed]
    for killer in killers:
        killer.start()
    result = lab.train(run=name, steps=str(STEPS), staleness="2")
    for killer in killers:
        killer.join()
    lost = dict(result.lost)
    for call in ("generate", "verify"):
        assert 1 <= lost.pop(call) <= 2  # the result before it may have been on its way
    assert lost.pop("publish", 1) == 1  # the version before may have been on its way
    assert lost == {"train": 1}
    check_steps(lab, run)
    assert max(lab.metrics(run, "staleness/max").values()) <= 2


def test_a_generator_that_nobody_named_and_that_stops_does_not_stop_the_run(
    lab: Any, undisturbed: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(workplace, "Dispatch", partial(Dispatch, late_after=1.0))
    name = lab.new_name()
    run = lab.run_folder(name)
    with ThreadPoolExecutor(1) as pool:
        training = pool.submit(lab.train, run=name, steps=str(STEPS), staleness="0")
        until(lambda: training.done() or 1 in lab.metrics(run, "reward/mean"))
        with dask_worker(lab, "GENERATOR=1 CPU=1") as worker:
            known = {f"{role}-0" for role in ("generator", "verifier")} | {"trainer"}
            until(lambda: {offer.name for offer in offers(lab.client)} - known)
            (stranger,) = {offer.name for offer in offers(lab.client)} - known
            try:
                until(lambda: training.done() or lab.metrics(run, f"sync/{stranger}/fetched_bytes"))
                os.kill(worker.pid, SIGSTOP)
                result = training.result(240)
            finally:
                os.kill(worker.pid, SIGCONT)
    assert result.lost == {}
    check_steps(lab, run)
    assert lab.weights_digest(run, STEPS) == undisturbed
    said = capfd.readouterr().err
    # It may have been late, and back, while it loaded its libraries; and where it had nothing, it got nothing.
    late = said.count(f"{stranger} has not come back with ") - said.count(f"{stranger} came back with ")
    assert late in (0, 1), said
    assert late == 0 or "generator-0 does the same, and the first result counts" in said
    until(lambda: len(offers(lab.client)) == 3)


def test_a_run_killed_again_and_again_ends_as_if_nothing_had_been(lab: Any, undisturbed: str, tmp_path: Path) -> None:
    home = lab.fresh_home(tmp_path / "home")
    run = home / "runs" / "often-killed"

    def logged() -> int:
        return max(lab.metrics(run, "groups/used"), default=0)

    def while_files_are_written() -> bool:
        return any(run.glob(".scratch.*.tmp/*.safetensors"))

    def between_checkpoint_and_log() -> bool:
        return max(store.versions(str(run / "state")), default=0) > logged()

    def at_any_moment() -> Callable[[], bool]:
        moment = time.monotonic() + random.uniform(0, 0.4)
        return lambda: time.monotonic() >= moment

    options = lab.options(steps=str(STEPS), staleness="0", cluster__scheduler=None, cluster__threads="1")
    words: tuple[str, ...] = ("train", "--run", run.name)
    known = 2
    for reached in (lambda: while_files_are_written, lambda: between_checkpoint_and_log, at_any_moment):
        with lab.command(*words, options=options, home=home, **lab.access) as command:
            # a resumed run logs the step of its checkpoint first, if that was not logged any more
            until(lambda known=known: logged() >= known or command.process.poll() is not None)
            until(reached(), every=0.0005)
            command.signal_group(SIGKILL)
            code, _, err = command.finish()
            assert code == -SIGKILL, err  # it was not over
            until(lambda: not command.alive())
        known = logged() + 2
        words = ("train", "--resume", run.name)
    result = lab.train(resume=str(run), home=home, steps=str(STEPS), staleness="0")
    assert result.steps == STEPS
    check_steps(lab, run, home=home)
    assert lab.weights_digest(run, STEPS) == undisturbed
    assert not list(run.glob("**/.*.tmp"))


def test_a_corrupt_checkpoint_is_passed_over_with_a_warning(
    lab: Any, undisturbed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(lab.train(steps="4", staleness="0").run)
    weights = run / "state" / "4" / "model.safetensors"
    broken = bytearray(weights.read_bytes())
    broken[-1] ^= 1
    weights.write_bytes(broken)
    lab.train(resume=run.name, steps=str(STEPS), staleness="0")
    assert "warning: checkpoint 4 is skipped" in capsys.readouterr().err
    check_steps(lab, run)
    assert lab.weights_digest(run, STEPS) == undisturbed


def test_damaged_weights_are_published_whole_while_the_run_goes_on_and_when_it_is_resumed(
    lab: Any, undisturbed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    name = lab.new_name()
    run = lab.run_folder(name)
    lab.settle()

    def damage() -> None:  # staleness 0: no version is under way while one generates
        for whole in (run / "weights").glob("v*/model.safetensors"):
            whole.write_bytes(b"nothing")

    damaging = threading.Thread(
        target=kill_in_call,  # the next one starts with nothing
        args=(lab, "generator-0", "generate", run, 3, damage),
    )
    damaging.start()
    lab.train(run=name, steps="10", staleness="0")
    damaging.join()
    err = capsys.readouterr().err
    assert "warning: " in err
    assert re.search(r"weights/v\d+(-whole)? is torn: 'model.safetensors' has 7 bytes", err)
    assert "is published whole" in err
    for whole in (run / "weights").glob("*/model.safetensors"):
        whole.write_bytes(b"nothing")
    lab.train(resume=name, steps=str(STEPS), staleness="0")
    check_steps(lab, run)
    assert lab.weights_digest(run, STEPS) == undisturbed


def test_steps_since_the_last_checkpoint_are_made_again_and_replace_what_was_logged(
    lab: Any, undisturbed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = lab.fresh_home(tmp_path / "home")
    run = home / "runs" / "seldom-saved"
    own = {"cluster__scheduler": None, "cluster__threads": "1", "checkpoint__every": "5"}
    options = lab.options(run=run.name, steps=str(STEPS), staleness="0", **own)
    with lab.command("train", options=options, home=home, **lab.access) as command:
        until(lambda: 8 in lab.metrics(run, "groups/used") or command.process.poll() is not None)
        command.signal_group(SIGKILL)
        assert command.finish()[0] == -SIGKILL
    assert store.versions(str(run / "state"))[-1] % 5 == 0
    evaluated = MetricLog(run / "eval-sums.jsonl", again=True)
    for step in (1, STEPS):
        evaluated.append(step, {"eval/sums/reward": 0.5})
    capsys.readouterr()
    result = lab.train(resume=str(run), home=home, steps=str(STEPS), staleness="0", checkpoint__every="5")
    assert [line.step for line in read_metrics(run / "eval-sums.jsonl")] == [1]
    assert result.steps == STEPS
    assert " are made again" in capsys.readouterr().err
    check_steps(lab, run, home=home)
    assert lab.weights_digest(run, STEPS) == undisturbed
    assert kept_steps(str(run)) == list(range(1, STEPS + 1))
    assert store.versions(str(run / "state")) == [10, STEPS]
