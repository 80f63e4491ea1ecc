"""The calls of one flow on the cluster: submitted, counted when a worker dies in one, held or given up."""

import asyncio
import concurrent.futures
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar
from weakref import WeakValueDictionary

from distributed import Client, Future
from distributed.client import FutureCancelledError
from distributed.comm.core import CommClosedError
from distributed.protocol import pickle

from infra.cluster.exclusions import Exclusions
from infra.cluster.placement import (
    ALWAYS,
    Offer,
    PlacementConfig,
    PlacementError,
    check_placement,
    offers,
    unsatisfied,
)
from infra.cluster.timeline import Measured, Timeline, measured
from infra.dispatch.durations import Durations
from infra.dispatch.presence import Presence
from infra.dispatch.signs import poll_seconds
from infra.errors import causes

T = TypeVar("T")


class DispatchError(RuntimeError):
    """A call that did not end.

    PoisonedCallError     every worker that ran it died
    TakeoverError         its worker is gone or silent, and no other may run it beside the first
    DispatchStoppedError  `Calls.stop` was called
    SchedulerLostError    the Dask scheduler is gone
    """


class PoisonedCallError(DispatchError):
    """A call whose worker died each time it ran."""


class TakeoverError(DispatchError):
    """A call that only one worker may run at a time would have to go to another one. The first may go on at any moment:
    before the call is made elsewhere, what the first still writes must be refused."""


class DispatchStoppedError(DispatchError):
    """The call was given up because `Calls.stop` was called."""


class SchedulerLostError(DispatchError):
    """The Dask scheduler is gone, and with it every call under way."""


@dataclass(frozen=True)
class Awaited:
    """A call that a thread waits for."""

    name: str
    work: str  # what it does: calls of one name may differ in length
    worker: str | None  # its address, if it was sent to one
    since: float  # by time.monotonic


def work_of(function: Callable[..., object]) -> str:
    """The name of the work that calls of this function do: they take about as long as each other."""
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', repr(type(function)))}"


def nobody_listens(line: str) -> None:
    """Drops a line for people."""


def is_lost(error: BaseException | None, client: Client) -> bool:
    """Whether this was raised because the client's scheduler is gone, or came back and knows nothing of its calls."""
    lost = (SchedulerLostError, CommClosedError)
    return client.status != "running" or any(isinstance(each, lost) for each in causes(error))


class Calls:
    """The futures of calls that are placed as `placement` says. Safe to use from several threads at once.

    As a context manager it stops at the end, so that no thread keeps waiting for a cluster that goes away.
    """

    def __init__(self, client: Client, placement: PlacementConfig, say: Callable[[str], None] = nobody_listens) -> None:
        """`say` is called from several threads, with a line for people."""
        self.client = client
        # Dask's client connects again by itself: to a scheduler that knows no lock, call or worker of before.
        self.connection = client.scheduler_comm
        self.placement = placement
        self.say = say
        self.lost: Counter[str] = Counter()  # calls that died with their worker, by name
        self.timeline = Timeline()  # of every call that came back or was lost
        self.going = threading.Event()  # cleared while the work is held
        self.going.set()
        self.stopped = False
        self.silent: set[str] = set()  # addresses of workers that are late with a lease: they get no other
        self.lacking: dict[str, float] = {}  # calls that wait for a worker, and since when, by time.monotonic
        self.required = frozenset(ALWAYS)  # calls that workers must be there for
        self.own: dict[object, tuple[str, float]] = {}  # what this process waits for itself, and since when
        self.took = Durations()  # of the calls that came back
        self.exclusions = Exclusions(placement, say, own=client.cluster is not None)
        self.progress = time.monotonic()  # when a call came back last, or its worker was lost
        self._seen: tuple[float, list[Offer]] = -float("inf"), []  # when workers were asked for last, and who was there
        self._presence = Presence(say)
        self._able: tuple[list[Offer], dict[tuple[str | None, bool], list[Offer]]] = [], {}  # who there, for which call
        self._awaited: dict[str, Awaited] = {}  # by the key of its future
        self._lock = threading.Lock()
        # Weak: a future that its owner lets go of is released on the cluster too.
        self._outstanding: WeakValueDictionary[str, Future[Any]] = WeakValueDictionary()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.stop()

    def require(self, calls: Iterable[str]) -> None:
        """Have workers be there for these calls too; those that `placement` does not name run where others do. Raises
        PlacementError."""
        self.required |= {call for call in calls if call in self.placement.calls}
        check_placement(self.client, self.placement, self.required)

    def submit(
        self,
        call: str,
        function: Callable[..., T],
        *args: Any,
        priority: int = 0,
        worker: str | None = None,
        background: str | None = None,
        name: str | None = None,
    ) -> Future[Measured[T]]:
        """A plain Dask future of `function(*args)`, `measured`, on `worker` (an address) if given. It takes the call's
        tags from its worker while it runs; with a name in `background` nothing. `name`: what it is called instead.

        Of the calls that wait on a worker the one with the highest `priority` starts first. Raises DispatchStoppedError
        and SchedulerLostError.
        """
        self._check_connection()
        called = background or name or call
        # in one piece: Dask's scheduler would take the arguments apart, for which it has no use
        sealed = pickle.dumps((function, args))  # type: ignore[no-untyped-call]
        with self._lock:
            if self.stopped:
                raise DispatchStoppedError(called)
            future: Future[Measured[T]] = self.client.submit(
                measured,
                sealed,
                key=f"{called}-{uuid.uuid4().hex}",
                resources=self.placement.resources(call) if background is None else None,
                priority=priority,
                workers=None if worker is None else [worker],
                pure=False,
            )
            self._outstanding[str(future.key)] = future
            self._awaited[str(future.key)] = Awaited(called, work_of(function), worker, time.monotonic())
        return future

    def forget(self, *futures: Future[Any]) -> None:
        """Release futures whose results were fetched, or are not wanted; pending ones are cancelled."""
        with self._lock:
            self.progress = now = time.monotonic()
            for future in futures:
                self._outstanding.pop(str(future.key), None)
                awaited = self._awaited.pop(str(future.key), None)
                if awaited is not None and future.status == "finished":
                    self.took.add(awaited.work, now - awaited.since)
        self.cancel([future for future in futures if future.status == "pending"])

    def fetch(self, future: Future[T]) -> "concurrent.futures.Future[T]":
        """The future's result, being fetched by one request that is never given up: Dask reports a gathering whose
        caller has left as a fault of its own."""
        assert self.client.loop is not None  # it has submitted something
        gathering = self.client.gather(future, asynchronous=True)  # type: ignore[no-untyped-call]
        return asyncio.run_coroutine_threadsafe(gathering, self.client.loop.asyncio_loop)  # type: ignore[attr-defined]

    @property
    def awaited(self) -> dict[str, Awaited]:
        """The calls that a thread waits for, by the key of their future."""
        with self._lock:
            return dict(self._awaited)

    @contextmanager
    def waiting_for(self, what: str) -> Iterator[None]:
        """Have `Watch` say that this process itself waits for `what`, where the context takes long."""
        one = object()  # several threads may wait for the same
        self.own[one] = (what, time.monotonic())
        try:
            yield
        finally:
            del self.own[one]

    def unawait(self, future: Future[Any]) -> None:
        """Stop waiting for a call that goes on."""
        with self._lock:
            self._awaited.pop(str(future.key), None)

    def cancel(self, futures: list[Future[Any]]) -> None:
        """Cancel these calls on the cluster."""
        if futures and self.client.status == "running":
            with suppress(OSError):  # the scheduler is gone: nothing is left to cancel
                self.client.cancel(futures)  # type: ignore[no-untyped-call]

    def count(self, call: str) -> None:
        """Count a call that died with its worker."""
        with self._lock:
            self.lost[call] += 1

    def hold(self) -> None:
        """Take leases back and start no call until `release`; a running call of `run` goes on."""
        self.going.clear()

    def release(self) -> None:
        """Go on after `hold`."""
        self.progress = time.monotonic()
        self.going.set()

    def stop(self) -> None:
        """Cancel every call: the threads that wait for one raise `DispatchStoppedError`, and so does a later call."""
        with self._lock:
            self.stopped = True
            outstanding = list(self._outstanding.values())
            self._outstanding.clear()
            self._awaited.clear()
        self.going.set()
        self.cancel(outstanding)

    def cancelled(self, call: str, error: FutureCancelledError) -> DispatchError:
        """The error for a call that others than its caller have cancelled."""
        return DispatchStoppedError(call) if self.stopped else SchedulerLostError(f"{call}: {error}")

    def unsatisfied(self, call: str) -> PlacementError:
        """The error that says what `call` lacks."""
        present = [offer for offer in self._present() if not offer.leaves]
        tags, given = self.placement.tags(call), self.exclusions
        excluded = [offer for offer in present if given.is_stranger(offer) or given.excluded(call, offer)]
        error = unsatisfied(self.client, call, tags, [offer for offer in present if offer not in excluded])
        reasons = given.reasons(call, [offer for offer in excluded if offer.satisfies(tags)])
        return PlacementError(f"{error} (excluded, {reasons})") if reasons else error

    def offers(
        self, call: str | None = None, seconds: float | None = None, *, leaving: bool = False, lately: float = 0.0
    ) -> list[Offer]:
        """The workers present that run our source, or those of them that may run `call`; those that were asked to leave
        only if `leaving`. `lately`: an answer so many seconds old will do, or as old as `poll_seconds`. Raises
        SchedulerLostError, also where the scheduler has not answered in `seconds`, if given.
        """
        there = self._present(seconds, lately)
        if (able := self._able)[0] is not there:
            able = self._able = there, {}
        found = able[1]
        if (call, leaving) not in found:
            tags = () if call is None else self.placement.tags(call)
            found[call, leaving] = [
                offer
                for offer in there
                if (leaving or not offer.leaves) and not self.exclusions.is_stranger(offer) and offer.satisfies(tags)
            ]
        return list(found[call, leaving])

    def _present(self, seconds: float | None = None, lately: float = 0.0) -> list[Offer]:
        """Leaving ones too."""
        self._check_connection()
        (asked, there), now = self._seen, time.monotonic()
        if lately and now - asked <= max(lately, poll_seconds(len(there))):
            return there
        try:
            there = offers(self.client, seconds, leaving=True, given_up=lambda: self.stopped)
        except OSError as error:
            if self.stopped:
                raise DispatchStoppedError("the question which workers are there") from error
            raise SchedulerLostError(f"the Dask scheduler does not answer: {error}") from error
        if now > self._seen[0] and not self.stopped:  # else another thread has asked since
            self._seen = now, there
            self._presence.tell(now, there)
        return there

    def _check_connection(self) -> None:
        if self.client.scheduler_comm is not self.connection:
            raise SchedulerLostError("the connection to the Dask scheduler was lost")
