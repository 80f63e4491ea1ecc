"""Leases: the items of one call, handed out to its workers one at a time, as they come back for the next."""

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import wait
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar

from distributed import Future
from distributed.client import FutureCancelledError
from distributed.scheduler import KilledWorker, NoValidWorkerError

from infra.cluster.calls import Calls, DispatchStoppedError, PoisonedCallError
from infra.cluster.placement import Offer, unsatisfied
from infra.cluster.timeline import Measured, Span, measured

T = TypeVar("T")
LOOK_SECONDS = 0.25  # how old the list of workers may be when leases are handed out, or a result is waited for


class _WorkerLostError(Exception):
    """The worker of one lease is gone."""


@dataclass(frozen=True)
class Lease(Generic[T]):
    """One item on one worker."""

    index: int  # of the item
    worker: Offer
    future: Future[Measured[T]]
    since: float  # seconds since 1970


class Leases(Generic[T]):
    """Every item of one call: waiting, held by a worker, or done. Used by one thread."""

    def __init__(
        self,
        calls: Calls,
        call: str,
        function: Callable[..., T],
        items: Sequence[tuple[Any, ...]],
        *,
        priority: int,
        attempts: int,
        patience: float,
    ) -> None:
        """`attempts`: deaths on the same item before it is given up; `patience`: seconds without a capable worker."""
        self._calls = calls
        self._call = call
        self._function = function
        self._items = items
        self._priority = priority
        self._attempts = attempts
        self._patience = patience
        self._waiting = deque(range(len(items)))
        self._held: dict[str, Lease[T]] = {}  # by the key of its future
        self._deaths: Counter[int] = Counter()
        self._returned: SimpleQueue[tuple[str, float]] = SimpleQueue()  # (key, seconds since 1970)
        self._capable: list[Offer] = []
        self._looked = self._alone_since = -float("inf")

    def results(self) -> Iterator[tuple[int, T]]:
        """`(index, result)` of every item as they come in; closing the iterator cancels what is under way."""
        try:
            while self._waiting or self._held:
                if not self._calls.going.is_set():
                    self._take_back()
                    self._calls.going.wait()
                if self._calls.stopped:
                    raise DispatchStoppedError(self._call)
                if time.monotonic() - self._looked > LOOK_SECONDS:
                    self._look()
                self._hand_out()
                try:
                    key, moment = self._returned.get(timeout=LOOK_SECONDS)
                except Empty:
                    continue
                if (lease := self._held.get(key)) is None:
                    continue  # its worker had vanished before
                if lease.future.status == "finished":
                    del self._held[key]
                    self._hand_out()  # before the result is fetched: the worker need not wait for that
                try:
                    done = self._fetch(lease)
                except _WorkerLostError:
                    self._lose(lease)
                    self._looked = -float("inf")
                    continue
                self._calls.forget(lease.future)
                self._calls.timeline.add(done.span(self._call, moment))
                yield lease.index, done.result
        finally:
            self._take_back()

    def _take_back(self) -> None:
        """From the workers, who forget what they were at."""
        self._waiting.extendleft(sorted((lease.index for lease in self._held.values()), reverse=True))
        self._calls.forget(*(lease.future for lease in self._held.values()))
        self._held.clear()

    def _look(self) -> None:
        """At who is there, and at whose leases are lost. Raises PlacementError when nobody was for too long."""
        self._capable = self._calls.offers(self._call)
        self._looked = time.monotonic()
        present = {offer.address for offer in self._capable}
        for lease in [lease for lease in self._held.values() if lease.worker.address not in present]:
            self._lose(lease)
        if self._capable or self._alone_since < 0:
            self._alone_since = self._looked
        elif self._looked - self._alone_since > self._patience:
            tags = self._calls.placement.tags(self._call)
            raise unsatisfied(self._calls.client, self._call, tags, self._calls.offers())

    def _hand_out(self) -> None:
        busy = {lease.worker.address for lease in self._held.values()}
        for worker in self._capable:
            if self._waiting and worker.address not in busy:
                index = self._waiting.popleft()
                # Pinned and strict: Dask forgets the tags too when it may use other workers. A lease on an address
                # that vanished is noticed at the next look, because Dask itself would wait for it to come back.
                future = self._calls.submit(
                    self._call,
                    measured,
                    self._function,
                    *self._items[index],
                    priority=self._priority,
                    worker=worker.address,
                )
                self._held[str(future.key)] = Lease(index, worker, future, time.time())
                future.add_done_callback(  # type: ignore[no-untyped-call]
                    lambda done: self._returned.put((str(done.key), time.time()))
                )

    def _fetch(self, lease: Lease[T]) -> Measured[T]:
        """What a lease brought back. Raises what the function raised, or _WorkerLostError."""
        client = self._calls.client
        assert client.loop is not None  # it has submitted something
        # One request that is never given up: Dask reports what it gathers for a caller who left as a fault of its own.
        gathering = client.gather(lease.future, asynchronous=True)  # type: ignore[no-untyped-call]
        fetching = asyncio.run_coroutine_threadsafe(gathering, client.loop.asyncio_loop)  # type: ignore[attr-defined]
        while not wait([fetching], LOOK_SECONDS).done:
            if lease.worker.address not in [offer.address for offer in self._calls.offers()]:
                raise _WorkerLostError
        try:
            back: Measured[T] = fetching.result()
        except (KilledWorker, NoValidWorkerError):
            raise _WorkerLostError from None
        except FutureCancelledError as error:
            raise self._calls.cancelled(self._call, error) from None
        return back

    def _lose(self, lease: Lease[T]) -> None:
        """Its worker is gone: the item is the next to be handed out. Raises PoisonedCallError."""
        self._held.pop(str(lease.future.key), None)
        self._calls.forget(lease.future)
        self._calls.cancel([lease.future])  # also if it was done: its result is asked for, and nobody has it
        self._calls.count(self._call)
        self._calls.timeline.add(Span(lease.worker.name, self._call, lease.since, time.time(), lost=True))
        self._deaths[lease.index] += 1
        if self._deaths[lease.index] >= self._attempts:
            raise PoisonedCallError(self._call, self._attempts)
        self._waiting.appendleft(lease.index)
