"""A Dask client of workers that are simulated: a flow's dispatch works with it, in real time, beside no load of theirs.

Each worker does one call at a time in seconds that are drawn; in some it dies, and is back under another address after
a while, and in some it stops without dying. A worker's draws are its own, so that a seed makes the same ones in
whatever order calls come to it. The answer in which the scheduler describes its workers is packed and unpacked as Dask
does it.
"""

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
from distributed.protocol import pickle
from distributed.protocol.core import dumps, loads
from distributed.scheduler import KilledWorker, heartbeat_interval

from infra.cluster.timeline import Loading, Measured

UNEQUAL = (
    0.35  # standard deviation of the logarithm of workers' seconds: of 64, the slowest takes five times the fastest
)
UNEVEN = 0.2  # and of one worker's from call to call
AWAY = 5.0  # mean seconds until a worker that died is back
STOPPED = 5.0  # times its seconds for which a worker stops


@dataclass(frozen=True)
class Kind:
    """Workers of one role."""

    tag: str
    count: int
    seconds: float  # of a call, the median
    failures: float  # share of calls in which a worker dies, or stops: half of each


@dataclass(eq=False)
class SimulatedFuture:
    """As much of Dask's future as a dispatch asks for."""

    key: str
    worker: "_Worker"
    times: float = 1.0  # as long as its kind's call
    status: str = "pending"
    result: Measured[None] | None = None
    callbacks: list[Callable[["SimulatedFuture"], None]] = field(default_factory=list)

    def add_done_callback(self, called: Callable[["SimulatedFuture"], None]) -> None:
        self.callbacks.append(called)
        if self.status != "pending":
            called(self)

    def end(self, status: str) -> None:
        if self.status == "pending":
            self.status = status
            for called in self.callbacks:
                called(self)


@dataclass(eq=False)
class _Worker:
    """A worker, and what waits on it."""

    name: str
    kind: Kind
    draws: np.random.Generator
    factor: float  # of its kind's seconds
    address: str
    waiting: deque[SimulatedFuture] = field(default_factory=deque)
    at: SimulatedFuture | None = None
    seen: float = field(default_factory=time.time)
    stopped: bool = False

    def draw(self, times: float) -> tuple[float, str]:
        """Seconds of its next call, so many times as long as its kind's, and how that ends."""
        seconds = times * self.kind.seconds * self.factor * float(np.exp(UNEVEN * self.draws.standard_normal()))
        fate = float(self.draws.random())
        if fate < self.kind.failures / 2:
            return seconds * float(self.draws.random()), "killed"
        return (seconds * STOPPED, "stopped") if fate < self.kind.failures else (seconds, "")

    def described(self, versions: Mapping[str, str]) -> dict[str, Any]:
        """As Dask's scheduler describes a worker of ours."""
        counts = {"executing": 1, "memory": 0, "released": 0}
        traffic = dict.fromkeys(("incoming_bytes", "incoming_count", "outgoing_bytes", "outgoing_count"), 0)
        machine = {"device": "a simulated one", "memory_gb": 8.0, "cores": 4, "machine": self.name, "waits": ""}
        metrics = {
            **dict.fromkeys(("cpu", "memory", "managed_bytes", "read_bytes", "write_bytes", "num_fds"), 12345.678),
            "task_counts": counts,
            "bandwidth": {"total": 1e8, "workers": {}, "types": {}},
            "spilled_bytes": {"memory": 0, "disk": 0},
            "transfer": traffic,
            "event_loop_interval": 0.02,
            "time": self.seen,
            "rlvf": {"tokens_per_second": 1000.0, "versions": versions, **machine},
        }
        return {
            "type": "Worker",
            "id": self.name,
            "host": "10.0.0.1",
            "resources": {"CPU": 1, self.kind.tag: 1},
            "local_directory": f"/tmp/dask/{self.name}",
            "name": self.name,
            "nthreads": 1,
            "memory_limit": 8 * 2**30,
            "last_seen": self.seen,
            "services": {"dashboard": 40000},
            "metrics": metrics,
            "status": "running",
            "nanny": self.address,
        }


class SimulatedClient:
    """The client, as a context manager; its workers' events are in a thread of its own."""

    status = "running"
    cluster = None

    def __init__(self, kinds: Sequence[Kind], seed: int, versions: Mapping[str, str]) -> None:
        """`versions`: what each worker announces, see `infra.cluster.pace`."""
        self.deaths = 0
        self.stops = 0
        self.scheduler_comm = object()
        self.scheduler = SimpleNamespace(identity=self._identity, processing=self._processing, address="simulated")
        self.loop = SimpleNamespace(asyncio_loop=asyncio.new_event_loop())
        self._loop: asyncio.AbstractEventLoop = self.loop.asyncio_loop
        self._versions = versions
        self._workers: dict[str, _Worker] = {}  # by address
        self._born = 0
        for kind in kinds:
            for index in range(kind.count):
                draws = np.random.default_rng([seed, self._born])
                factor = float(np.exp(UNEQUAL * draws.standard_normal()))
                self._join(_Worker(f"{kind.tag.lower()}-{index}", kind, draws, factor, ""))
        self._described = self._pack()
        self._thread = threading.Thread(target=self._loop.run_forever, name="simulated", daemon=True)

    def __enter__(self) -> "SimulatedClient":
        self._thread.start()
        self._loop.call_soon_threadsafe(self._heartbeat)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        for gathering in asyncio.all_tasks(self._loop):
            gathering.cancel()
            with suppress(asyncio.CancelledError):
                self._loop.run_until_complete(gathering)
        self._loop.close()

    def own_seconds(self) -> float:
        """Processor seconds of the simulation itself, so far."""

        async def ask() -> float:
            return time.thread_time()

        return asyncio.run_coroutine_threadsafe(ask(), self._loop).result()

    # -- as a dispatch asks a client

    def submit(self, _: Any, sealed: bytes, *, key: str, workers: list[str], **__: Any) -> SimulatedFuture:
        """Nothing is called: a worker only takes its time, so many times as the call's first argument says."""
        _, args = pickle.loads(sealed)  # type: ignore[no-untyped-call]
        worker = self._workers.get(workers[0])
        future = SimulatedFuture(key, worker or _gone(workers[0]), args[0] if args else 1.0)
        self._loop.call_soon_threadsafe(self._arrive, future)
        return future

    def cancel(self, futures: list[SimulatedFuture]) -> None:
        self._loop.call_soon_threadsafe(self._cancel, list(futures))

    async def gather(self, future: SimulatedFuture, **_: Any) -> Measured[None] | None:
        if future.status == "error":
            at: Any = SimpleNamespace(address=future.worker.address)
            raise KilledWorker(future.key, at, 0)
        if future.status == "cancelled":
            raise asyncio.CancelledError
        return future.result

    def sync(self, function: Callable[..., Any], **named: Any) -> Any:
        return function(**named)

    def _identity(self, **_: Any) -> Any:
        return loads(self._described)  # type: ignore[no-untyped-call]

    def _processing(self, **_: Any) -> dict[str, list[str]]:
        return {at: [each.at.key] for at, each in list(self._workers.items()) if each.at is not None}

    # -- in its thread

    def _join(self, worker: _Worker) -> None:
        self._born += 1
        worker.address = f"tls://10.0.0.1:{self._born}"
        self._workers[worker.address] = worker

    def _pack(self) -> Any:
        workers = {at: worker.described(self._versions) for at, worker in self._workers.items()}
        return dumps({"type": "Scheduler", "workers": workers})

    def _heartbeat(self) -> None:
        now = time.time()
        for worker in self._workers.values():
            if not worker.stopped:
                worker.seen = now
        self._described = self._pack()
        self._loop.call_later(heartbeat_interval(len(self._workers)), self._heartbeat)

    def _arrive(self, future: SimulatedFuture) -> None:
        worker = future.worker
        if self._workers.get(worker.address) is not worker:
            return  # Dask keeps what is for a worker that is gone
        worker.waiting.append(future)
        if worker.at is None:
            self._begin(worker)

    def _begin(self, worker: _Worker) -> None:
        while worker.waiting and worker.at is None:
            if (future := worker.waiting.popleft()).status == "pending":
                seconds, fate = worker.draw(future.times)
                worker.at, worker.stopped = future, fate == "stopped"
                self.stops += worker.stopped
                self._loop.call_later(seconds, self._die if fate == "killed" else self._end, worker, future, seconds)

    def _end(self, worker: _Worker, future: SimulatedFuture, seconds: float) -> None:
        worker.stopped = False
        if worker.at is future:
            future.result = Measured(None, worker.name, worker.address, seconds, Loading())
            worker.at = None
            future.end("finished")
            self._begin(worker)

    def _die(self, worker: _Worker, future: SimulatedFuture, _: float) -> None:
        if worker.at is not future:
            return  # it was cancelled in time
        self.deaths += 1
        del self._workers[worker.address]
        self._described = self._pack()
        held = [future, *worker.waiting]
        back = _Worker(worker.name, worker.kind, worker.draws, worker.factor, "")
        self._loop.call_later(AWAY * float(worker.draws.exponential()), self._return, back)
        for each in held:
            each.end("error")

    def _return(self, worker: _Worker) -> None:
        self._join(worker)
        self._described = self._pack()

    def _cancel(self, futures: list[SimulatedFuture]) -> None:
        for future in futures:
            future.end("cancelled")
            if future.worker.at is future and not future.worker.stopped:
                future.worker.at = None
                self._begin(future.worker)


def _gone(address: str) -> _Worker:
    """A worker that has died since it was offered a call."""
    return _Worker("", Kind("", 0, 0.0, 0.0), np.random.default_rng(0), 0.0, address)
