"""A machine whose clock is set back while it works, by an hour: what is to come every few milliseconds comes."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from distributed import Client, batched
from distributed.batched import BatchedSend
from tornado.ioloop import IOLoop, PeriodicCallback

from infra.cluster.cluster import cluster
from infra.cluster.cluster_config import ClusterConfig
from infra.cluster.settings import dask_environment
from infra.cluster.steady import count_by_steady_clock
from tests.conftest import StartScheduler

HOUR = 3600.0


@pytest.fixture
def set_back(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Sets the clock of this process back."""
    real = time.time
    monkeypatch.setattr(batched, "time", lambda: time.time())
    count_by_steady_clock()
    return lambda: monkeypatch.setattr(time, "time", lambda: real() - HOUR)


def test_what_is_done_now_and_then_is_done_on(set_back: Callable[[], None]) -> None:
    async def counted() -> list[float]:
        done: list[float] = []
        every = PeriodicCallback(lambda: done.append(time.monotonic()), 10)
        every.start()
        await asyncio.sleep(0.2)
        set_back()
        moment = time.monotonic()
        await asyncio.sleep(0.5)
        every.stop()
        return [at for at in done if at > moment + 0.1]

    assert len(asyncio.run(counted())) > 5


class Sent:
    """A connection."""

    def __init__(self) -> None:
        self.messages: list[str] = []

    async def write(self, messages: list[str], **_: object) -> int:
        self.messages += messages
        return 1

    def closed(self) -> bool:
        return False


def test_messages_go_on(set_back: Callable[[], None]) -> None:
    async def sent() -> list[str]:
        comm = Sent()
        sends = BatchedSend(interval="50ms", loop=IOLoop.current())  # type: ignore[no-untyped-call]
        sends.start(comm)  # type: ignore[no-untyped-call]
        sends.send("before")  # type: ignore[no-untyped-call]
        while not comm.messages:
            await asyncio.sleep(0.001)
        set_back()  # within the interval after a message
        sends.send("after")  # type: ignore[no-untyped-call]
        await asyncio.sleep(1)
        sends.please_stop = True
        sends.waker.set()
        return comm.messages

    assert asyncio.run(sent()) == ["before", "after"]


def by_what() -> Callable[[], tuple[set[str], bool]]:
    """A function for processes that do not have this file: by what they count, and whether their loop does so too."""

    def told() -> tuple[set[str], bool]:
        from distributed import batched, scheduler, semaphore
        from tornado.ioloop import IOLoop

        clocks = [vars(module)["time"] for module in (batched, scheduler, semaphore)]
        names = {f"{clock.__module__}.{clock.__name__}" for clock in clocks}
        return names, abs(IOLoop.current().time() - clocks[0]()) < 1

    return told


STEADY = {"infra.cluster.steady.steady"}, True


@pytest.mark.slow
def test_a_cluster_of_ours_counts_by_it(tmp_path: Path) -> None:
    client: Client
    with cluster(ClusterConfig(generators=1, threads=1, device="cpu"), log_dir=tmp_path) as client:
        found = [*client.run(by_what()).values(), client.run_on_scheduler(by_what())]  # type: ignore[no-untyped-call]
    assert len(found) > 1, found
    assert found == [STEADY] * len(found)


@pytest.mark.slow
def test_dask_s_own_commands_count_by_it_with_our_settings(start_scheduler: StartScheduler, tmp_path: Path) -> None:
    scheduler = start_scheduler()
    options = ["--nthreads", "1", "--memory-limit", "0", "--no-dashboard", "--local-directory", str(tmp_path)]
    command = [sys.executable, "-m", "distributed.cli.dask_worker", scheduler.address, *options]
    worker = subprocess.Popen(command, env=os.environ | dask_environment(), stderr=subprocess.DEVNULL)
    try:
        with Client(scheduler.address, set_as_default=False) as client:  # type: ignore[no-untyped-call]
            client.wait_for_workers(1, timeout=60)  # type: ignore[no-untyped-call]
            found = [*client.run(by_what()).values(), client.run_on_scheduler(by_what())]  # type: ignore[no-untyped-call]
    finally:
        worker.terminate()
        worker.wait(30)
    assert len(found) == 2
    assert found == [STEADY] * len(found)
