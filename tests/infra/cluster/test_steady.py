"""A machine whose clock is set back while it works, by an hour: what is to come every few milliseconds comes."""

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from distributed import Client, batched
from distributed.batched import BatchedSend
from tornado.ioloop import IOLoop, PeriodicCallback

from infra.cluster.cluster import cluster
from infra.cluster.cluster_config import ClusterConfig
from infra.cluster.steady import count_by_steady_clock

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


@pytest.mark.slow
def test_workers_count_by_it(tmp_path: Path) -> None:
    def told() -> tuple[str, bool]:
        from distributed import batched
        from tornado.ioloop import IOLoop

        clock = vars(batched)["time"]
        return f"{clock.__module__}.{clock.__name__}", abs(IOLoop.current().time() - clock()) < 1

    client: Client
    with cluster(ClusterConfig(generators=1, threads=1, device="cpu"), log_dir=tmp_path) as client:
        found = [*client.run(told).values(), client.run_on_scheduler(told)]  # type: ignore[no-untyped-call]
    assert len(found) > 1
    assert set(found) == {("infra.cluster.steady.steady", True)}
