"""Calls on tagged workers that survive the death of a worker.

Every call is idempotent by contract: it may run twice, and one whose worker died is simply submitted again. A finished
call may run twice as well: Dask computes a result anew when its worker dies before the result was fetched.
"""

import threading
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Any, Self, TypeVar
from weakref import WeakValueDictionary

from distributed import Client, Future, secede
from distributed.client import FutureCancelledError
from distributed.scheduler import KilledWorker, NoValidWorkerError

from infra.placement import Offer, PlacementConfig, offers, unsatisfied, workers_with
from infra.timeline import Measured, Span, Timeline, measured

T = TypeVar("T")
LOOK_SECONDS = 0.25  # how old the list of workers may be when leases are handed out
FETCH_SECONDS = 2.0  # how long a result may be on its way before we ask whether its worker is still there


class DispatchError(RuntimeError):
    """A call did not come to an end.

    PoisonedCallError     every worker that ran it died
    DispatchStoppedError  `Dispatch.stop` was called
    SchedulerLostError    the Dask scheduler is gone
    """


class PoisonedCallError(DispatchError):
    """A call whose worker died each time it ran."""

    def __init__(self, call: str, deaths: int) -> None:
        super().__init__(call, deaths)
        self.call = call
        self.deaths = deaths

    def __str__(self) -> str:
        return (
            f"{self.call}: {self.deaths} workers died while they ran the same call; it is not tried again "
            "(out of memory? see the log of the worker)"
        )


class DispatchStoppedError(DispatchError):
    """The call was given up because `Dispatch.stop` was called."""


class SchedulerLostError(DispatchError):
    """The Dask scheduler is gone, and with it every call under way."""


def leave_thread() -> None:
    """For a call that runs aside: from here on its worker may start the next one. Outside of a worker nothing."""
    with suppress(ValueError):
        secede()  # type: ignore[no-untyped-call]


class _WorkerLostError(Exception):
    """The worker of one lease is gone."""


@dataclass(frozen=True)
class _Lease:
    index: int  # of its item
    address: str  # of its worker
    worker: str  # its name
    future: Future[Measured[Any]]
    since: float  # seconds since 1970


class Dispatch:
    """Places calls on the workers that `placement` names. Safe to use from several threads at once.

    As a context manager it stops at the end, so that no thread keeps waiting for a cluster that goes away.
    """

    def __init__(
        self, client: Client, placement: PlacementConfig, *, attempts: int = 3, patience: float = 60.0
    ) -> None:
        """`attempts`: deaths of the same call before it is given up; `patience`: seconds without a capable worker."""
        self.client = client
        self.placement = placement
        self.attempts = attempts
        self.patience = patience
        self.lost: Counter[str] = Counter()  # calls that died with their worker, by name
        self.timeline = Timeline()  # of every call that came back or was lost
        self._lock = threading.Lock()
        self._going = threading.Event()  # cleared while the work is held
        self._going.set()
        # Weak: a future that its owner lets go of is released on the cluster too.
        self._outstanding: WeakValueDictionary[str, Future[Any]] = WeakValueDictionary()
        self._stopped = False
        self._last: dict[str, str] = {}  # the address of the worker that came back with a call last, by call

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def submit(
        self,
        call: str,
        function: Callable[..., T],
        *args: Any,
        priority: int = 0,
        worker: str | None = None,
        aside: str | None = None,
    ) -> Future[T]:
        """A plain Dask future of `function(*args)`, on `worker` (an address) if given. It takes the call's tags from
        its worker while it runs; with a name in `aside` nothing.

        Of the calls that wait on a worker the one with the highest `priority` starts first.
        """
        with self._lock:
            if self._stopped:
                raise DispatchStoppedError(call)
            future: Future[T] = self.client.submit(
                function,
                *args,
                key=f"{aside or call}-{uuid.uuid4().hex}",
                resources=self.placement.resources(call) if aside is None else None,
                priority=priority,
                workers=None if worker is None else [worker],
                pure=False,
            )
            self._outstanding[str(future.key)] = future
        return future

    def run(
        self,
        call: str,
        function: Callable[..., T],
        *args: Any,
        priority: int = 0,
        aside: str | None = None,
        begun: Callable[[], None] = lambda: None,
    ) -> T:
        """The result of `function(*args)`; submitted again when its worker dies.

        With a name in `aside`, which the timeline has then, it goes to the worker that ran `call` last and takes none
        of its tags: the next such call may run while it does, as soon as it leaves its thread (`leave_thread`). `begun`
        is called when the cluster has it: what is submitted after that starts after it on that worker.

        What the function raises is raised here at once. Otherwise: `PoisonedCallError` after `attempts` deaths,
        `PlacementError` when no worker offered the tags for a minute, `DispatchStoppedError`, `SchedulerLostError`.
        """
        name = aside or call
        for _ in range(self.attempts):
            self._going.wait()
            worker = self._last_worker(call) if aside else None
            future = self.submit(call, measured, function, *args, priority=priority, worker=worker, aside=aside)
            begun()
            since = time.time()
            try:
                back: Measured[T] = future.result()
            except KilledWorker as killed:
                self._count(name)
                self.timeline.add(Span(str(killed.last_worker.name), name, since, time.time(), lost=True))
            except NoValidWorkerError:
                if aside:  # the worker that it was meant for is gone
                    self._count(name)
                    continue
                raise unsatisfied(self.client, call, self.placement.tags(call), self._offers()) from None
            except FutureCancelledError as error:
                raise self._cancelled(name, error) from None
            else:
                self._last[call] = back.address
                self.timeline.add(back.span(name, time.time()))
                return back.result
            finally:
                self._forget(future)
        raise PoisonedCallError(name, self.attempts)

    def lease(
        self, call: str, function: Callable[..., T], items: Sequence[tuple[Any, ...]], *, priority: int = 0
    ) -> Iterator[tuple[int, T]]:
        """`(index, function(*items[index]))` of every item, once each, in the order in which they come in.

        A worker holds one item at a time and gets its next one when it returns the last, so that a slow worker does
        less; a worker that joins is used at the next hand-out; one that is lost costs its lease, and the result before
        it if that had not come in yet: their items go to the front of the queue. Nothing is handed out before the first
        result is asked for, nor while the consumer is busy with one: keep that short. Closing the iterator cancels what
        is under way, and so does `hold`, whose items are handed out anew when it is over. Raises as `run` does.
        """
        waiting = deque(range(len(items)))
        deaths: Counter[int] = Counter()
        leases: dict[str, _Lease] = {}
        returned: SimpleQueue[tuple[str, float]] = SimpleQueue()
        capable: dict[str, str] = {}  # name by address
        looked = alone_since = -float("inf")

        def hand_out() -> None:
            busy = {lease.address for lease in leases.values()}
            for address in capable:
                if waiting and address not in busy:
                    index = waiting.popleft()
                    # Pinned and strict: Dask forgets the tags too when it may use other workers. A lease on an address
                    # that vanished is noticed at the next look, because Dask itself would wait for it to come back.
                    future = self.submit(call, measured, function, *items[index], priority=priority, worker=address)
                    leases[str(future.key)] = _Lease(index, address, capable[address], future, time.time())
                    future.add_done_callback(  # type: ignore[no-untyped-call]
                        lambda done: returned.put((str(done.key), time.time()))
                    )

        def lose(lease: _Lease) -> None:
            leases.pop(str(lease.future.key), None)
            self._forget(lease.future)
            self._count(call)
            self.timeline.add(Span(lease.worker, call, lease.since, time.time(), lost=True))
            deaths[lease.index] += 1
            if deaths[lease.index] >= self.attempts:
                raise PoisonedCallError(call, self.attempts)
            waiting.appendleft(lease.index)

        try:
            while waiting or leases:
                if not self._going.is_set():
                    waiting.extendleft(sorted((lease.index for lease in leases.values()), reverse=True))
                    self._forget(*(lease.future for lease in leases.values()))
                    leases.clear()
                    self._going.wait()
                if self._stopped:
                    raise DispatchStoppedError(call)
                if time.monotonic() - looked > LOOK_SECONDS:
                    present = self._offers()
                    looked = time.monotonic()
                    tags = self.placement.tags(call)
                    capable = {offer.address: offer.name for offer in present if offer.satisfies(tags)}
                    for lease in [lease for lease in leases.values() if lease.address not in capable]:
                        lose(lease)
                    if capable or alone_since < 0:
                        alone_since = looked
                    elif looked - alone_since > self.patience:
                        raise unsatisfied(self.client, call, self.placement.tags(call), present)
                hand_out()
                try:
                    key, moment = returned.get(timeout=LOOK_SECONDS)
                except Empty:
                    continue
                back = leases.get(key)
                if back is None:
                    continue  # its worker had vanished before
                try:
                    if back.future.status == "finished":
                        del leases[str(back.future.key)]
                        hand_out()  # before the result is fetched: the worker need not wait for that
                    done = self._fetch(call, back)
                except _WorkerLostError:
                    lose(back)
                    looked = -float("inf")
                    continue
                self._forget(back.future)
                self.timeline.add(done.span(call, moment))
                yield back.index, done.result
        finally:
            self._forget(*(lease.future for lease in leases.values()))

    def tell(self, call: str, function: Callable[..., object], *args: Any) -> None:
        """Call a function that returns at once on every worker that may run `call`, beside whatever it does. Nobody
        waits for that: a worker that is away misses it."""

        def ask(address: str) -> None:
            with suppress(Exception):  # the worker or the scheduler has gone
                self.client.run(function, *args, workers=[address], on_error="ignore")

        for address in workers_with(self.client, self.placement.tags(call)):
            threading.Thread(target=ask, args=(address,), name="telling", daemon=True).start()

    @property
    def under_way(self) -> list[Future[Any]]:
        """The futures of the calls that have not been given back yet."""
        with self._lock:
            return list(self._outstanding.values())

    def hold(self) -> None:
        """Take leases back and start no call until `release`; a call of `run` that is under way comes to its end."""
        self._going.clear()

    def release(self) -> None:
        """Go on after `hold`."""
        self._going.set()

    def stop(self) -> None:
        """Give up every call under way: the threads that wait get `DispatchStoppedError`, and so does a later call."""
        with self._lock:
            self._stopped = True
            outstanding = list(self._outstanding.values())
            self._outstanding.clear()
        self._going.set()
        self._cancel(outstanding)

    def _fetch(self, call: str, lease: _Lease) -> Measured[Any]:
        patience = FETCH_SECONDS
        while True:
            try:
                return lease.future.result(timeout=patience)
            except (KilledWorker, NoValidWorkerError):
                raise _WorkerLostError from None
            except FutureCancelledError as error:
                raise self._cancelled(call, error) from None
            except TimeoutError:
                if lease.future.status == "error":
                    raise  # the function's own
                if lease.address not in [offer.address for offer in self._offers()]:
                    raise _WorkerLostError from None
                patience *= 2  # a big result on a slow line: each try starts over

    def _offers(self) -> list[Offer]:
        try:
            return offers(self.client)
        except OSError as error:
            raise SchedulerLostError(f"the Dask scheduler does not answer: {error}") from error

    def _last_worker(self, call: str) -> str | None:
        """The address of the worker that ran `call` last, of another that may if it is gone."""
        capable = [offer.address for offer in self._offers() if offer.satisfies(self.placement.tags(call))]
        last = self._last.get(call)
        return last if last in capable else next(iter(capable), None)

    def _count(self, call: str) -> None:
        with self._lock:
            self.lost[call] += 1

    def _cancelled(self, call: str, error: FutureCancelledError) -> DispatchError:
        return DispatchStoppedError(call) if self._stopped else SchedulerLostError(f"{call}: {error}")

    def _forget(self, *futures: Future[Any]) -> None:
        with self._lock:
            for future in futures:
                self._outstanding.pop(str(future.key), None)
        self._cancel([future for future in futures if future.status == "pending"])

    def _cancel(self, futures: list[Future[Any]]) -> None:
        if futures and self.client.status == "running":
            with suppress(OSError):  # the scheduler is gone: nothing is left to cancel
                self.client.cancel(futures)  # type: ignore[no-untyped-call]
