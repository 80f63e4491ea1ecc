"""Calls on tagged workers that survive the death of a worker.

Every call is idempotent by contract: it may run twice, and one whose worker died is simply submitted again. A finished
call may run twice as well: Dask computes a result anew when its worker dies before the result was fetched.
"""

import concurrent.futures
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar, TypeVarTuple

from distributed import Client, Future, secede
from distributed.client import FutureCancelledError
from distributed.scheduler import KilledWorker, NoValidWorkerError

from infra.cluster.placement import ALONE, ANSWER_SECONDS, Offer, PlacementConfig
from infra.cluster.timeline import Measured, Span
from infra.dispatch.calls import Calls, DispatchStoppedError, SchedulerLostError, TakeoverError, nobody_listens, work_of
from infra.dispatch.deaths import poisoned
from infra.dispatch.lease_batch import Cuts, LeaseBatch
from infra.dispatch.leases import LeaseQueue
from infra.dispatch.signs import Signs
from infra.dispatch.watch import Watch
from infra.errors import mark_worker

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
POLL_SECONDS = 1.0  # between two looks at which workers give signs of life


def leave_thread() -> None:
    """Let the worker of this background call start its next one. Does nothing outside of a worker."""
    with suppress(ValueError):
        secede()  # type: ignore[no-untyped-call]


class Dispatch(Calls):
    """Calls that end whatever happens to workers: one (`run`), many (`lease`), or one on each worker (`tell`).

    As a context manager it says what is waited for when no call comes back for a while.
    """

    def __init__(
        self,
        client: Client,
        placement: PlacementConfig,
        say: Callable[[str], None] = nobody_listens,
        *,
        attempts: int = 3,
        patience: float = 60.0,
        late_after: float = 10.0,
    ) -> None:
        """`attempts`: deaths of the same call before it is given up; `patience`: seconds without a capable worker;
        `late_after`: see Schedule."""
        super().__init__(client, placement, say)
        self.attempts = attempts
        self.patience = patience
        self.late_after = late_after
        self._watch = Watch(self)
        self._queues: dict[str, LeaseQueue] = {}  # by call
        self._last: dict[str, Offer] = {}  # the worker that had a call in ALONE last, by call
        self._signs = Signs()
        self._told: set[str] = set()  # addresses of workers that are told something, and have not answered yet
        self._left: list[Future[Any]] = []  # of silent workers; held, so that Dask does not cancel them

    def __enter__(self) -> Self:
        self._watch.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._watch.stop()
        super().__exit__(kind, error, at)

    def run(
        self,
        call: str,
        function: Callable[[*Arguments], T],
        *args: *Arguments,
        background: str | None = None,
        begun: Callable[[], None] = lambda: None,
    ) -> T:
        """The result of `function(*args)`, submitted again when its worker dies. A call that is not in `ALONE` is a
        lease of one item: a second worker gets it where the first is late.

        With a name in `background`, for the timeline, the call goes to the worker that ran `call` last and takes none
        of its tags: the next one starts beside it, once it has left its thread (`leave_thread`). `begun` is called when
        the cluster has it: calls submitted after that start after it on that worker.

        A call in `ALONE` goes to the worker that had the one before. This raises `TakeoverError` where that worker is
        gone and none of its name has come, or where it is late and silent and another could run the call; a silent
        worker gets no calls until it has answered.

        Raises what the function raises (a lease: as `lease` says), `PoisonedCallError` after `attempts` deaths,
        `PlacementError` when no worker offered the tags for `patience`, `TakeoverError`, `DispatchStoppedError`,
        `SchedulerLostError`.
        """
        if call not in ALONE and background is None:
            ((_, result),) = self.lease(call, function, [args])
            return result
        name = background or call
        died: Counter[str] = Counter()  # by worker's name
        while died.total() < self.attempts:
            self.going.wait()
            worker = self._worker_for(call)
            future = self.submit(call, function, *args, worker=worker.address, background=background)
            begun()
            since = time.time()
            try:
                back = self._result(future, call, name, worker, work_of(function))
            except FutureCancelledError as error:
                raise self.cancelled(name, error) from None
            except Exception as error:
                if future.status == "error":
                    mark_worker(error, worker.name)
                raise
            finally:
                if future not in self._left:
                    self.forget(future)
            if back is not None:
                self.timeline.add(back.span(name, time.time()))
                return back.result
            self.count(name)
            died[worker.name] += 1
            self.timeline.add(Span(worker.name, name, since, time.time(), lost=True))
        raise poisoned(name, died)

    def _result(
        self, future: Future[Measured[T]], call: str, name: str, worker: Offer, work: str
    ) -> Measured[T] | None:
        """The call's result; None where its worker died. Raises what the function raised, and TakeoverError."""
        began = time.monotonic()
        fetching = self.fetch(future)
        while True:
            done, _ = concurrent.futures.wait([fetching], POLL_SECONDS)
            try:
                if done:
                    back: Measured[T] = fetching.result()
                    return back
                present = self.offers(seconds=ANSWER_SECONDS)
            except (KilledWorker, NoValidWorkerError):
                return None
            except SchedulerLostError:
                continue  # all calls are cancelled when it is gone
            now = time.monotonic()
            self._signs.poll(present, now)
            if worker not in present and str(future.key) not in self._calls_on(worker):
                return None  # it was gone before it got the call, which Dask would keep for it
            quiet = self._signs.quiet(worker.address, now)
            others = [offer for offer in present if self._may_run(offer, call) and offer != worker]
            if others and quiet > self.late_after and now - began > self.took.limit(work, self.late_after):
                self._leave(future, worker)
                raise TakeoverError(f"{name}: {worker.name} has given no sign of life for {quiet:.0f} s")

    def _may_run(self, offer: Offer, call: str) -> bool:
        return offer.satisfies(self.placement.tags(call)) and offer.address not in self.silent

    def _leave(self, future: Future[Any], worker: Offer) -> None:
        """Give this worker no other call before it has answered."""
        self.unawait(future)
        with self._lock:
            self._outstanding.pop(str(future.key), None)
        self._left.append(future)
        self.silent.add(worker.address)
        future.add_done_callback(lambda _: self.silent.discard(worker.address))  # type: ignore[no-untyped-call]

    def _worker_for(self, call: str) -> Offer:
        """The worker that had `call` last, or its successor of that name; at first the least busy one. A silent one
        only where there is no other. Waits for a worker. Raises TakeoverError, and PlacementError after `patience`."""
        began = time.monotonic()
        while not self.stopped:
            present = self.offers(call)
            self._signs.poll(present, time.monotonic())
            last = self._last.get(call)
            capable = [offer for offer in present if self._may_run(offer, call)] or present
            if same := [offer for offer in capable if last is not None and offer.name == last.name]:
                capable = same
            if capable:
                self.lacking.pop(call, None)
                worker = capable[0] if len(capable) == 1 else min(capable, key=lambda offer: len(self._calls_on(offer)))
                if last is not None and not same:
                    raise TakeoverError(f"{call}: {last.name} is gone")
                self._last[call] = worker
                return worker
            self.lacking.setdefault(call, began)
            if time.monotonic() - began > self.patience:
                self.lacking.pop(call, None)
                raise self.unsatisfied(call)
            time.sleep(POLL_SECONDS / 4)
        raise DispatchStoppedError(call)

    def _calls_on(self, worker: Offer) -> list[str]:
        """The keys of the calls that the scheduler has sent there."""
        scheduler: Any = self.client.scheduler
        sent = self.client.sync(scheduler.processing, workers=None)  # type: ignore[no-untyped-call]
        return [str(key) for key in sent.get(worker.address, ())]

    def renewed(self, client: Client | None = None) -> "Dispatch":
        """A new dispatch, of another client if given, that keeps what this one has learned but for which worker has a
        call in `ALONE`."""
        new = Dispatch(client or self.client, self.placement, self.say, attempts=self.attempts, patience=self.patience)
        new.late_after = self.late_after
        new.lost, new.timeline, new.took, new.exclusions = self.lost, self.timeline, self.took, self.exclusions
        new.required, new.silent, new._presence = self.required, self.silent, self._presence
        new._signs, new._left = self._signs, self._left
        if new.client is self.client:
            new.connection = self.connection
        return new

    def lease(
        self,
        call: str,
        function: Callable[[*Arguments], T],
        items: Sequence[tuple[*Arguments]],
        *,
        order: tuple[int, ...] = (),
        check: Callable[[int, T], str] | None = None,
        at_once: tuple[type[Exception], ...] = (),
        done: Callable[[int, T, Offer], bool] = lambda *_: True,
        without: Callable[[int], frozenset[str]] = lambda _: frozenset(),
        cuts: Cuts | None = None,
        tokens: Callable[[int], int] = lambda _: 0,
    ) -> Iterator[tuple[int, T]]:
        """`(index, function(*items[index]))` of every item, once each, in the order in which they come in.

        All leases of a call wait in one queue, by `order`: an idle worker gets the first of them that others would not
        have done before it (`Schedule`), and `items[index]` is read at that moment. A lost worker costs its lease, and
        the result before it if that had not come in. A late worker's goes to an idle one too: the first result counts.

        A result for which `check(index, result)` returns a reason is refused and done again; after three such results
        a worker gets no more leases. An item whose call raises is tried on another worker; after three errors a worker
        gets no more leases with these tags. An error is raised here when two workers raised at the same item, when
        there is no other worker, and at once for the types in `at_once`, upon which the caller acts.

        `done(index, result, worker)` is called in the thread that reads `items`, with each result that counts: where
        false, the item waits in its place again. Workers at `without(index)` get it last. `cuts` gives each worker
        items of a size of its own: `items` grows; else `tokens(index)` tells the timeline. The first lease is handed
        out as the first result is asked for. Closing the iterator cancels its leases, as does `hold`; `release` hands
        them out anew. Else raises as `run`.
        """
        with self._lock:
            if call not in self._queues:
                self._queues[call] = LeaseQueue(
                    self, call, attempts=self.attempts, patience=self.patience, late_after=self.late_after
                )
        return self._queues[call].results(
            LeaseBatch(function, items, order, check, at_once, done, without, cuts, tokens)
        )

    def ask(
        self,
        call: str,
        function: Callable[[*Arguments], T],
        *args: *Arguments,
        worker: Offer,
        seconds: float,
        name: str,
    ) -> T | None:
        """The result of `function(*args)`, placed as `call`, on this very worker, before the leases that wait there;
        None where it has not come in so many seconds, or the worker is gone: nothing may depend on it. `name`: what it
        is called. Otherwise raises as `run` does."""
        future = self.submit(call, function, *args, priority=1, worker=worker.address, name=name)
        fetching, ends = self.fetch(future), time.monotonic() + seconds
        try:
            while not concurrent.futures.wait([fetching], POLL_SECONDS).done:
                with suppress(SchedulerLostError):  # it may be slow: all calls are cancelled when it is gone
                    if time.monotonic() > ends or worker not in self.offers(seconds=ANSWER_SECONDS):
                        return None
            back = fetching.result()
        except (KilledWorker, NoValidWorkerError):
            return None
        except FutureCancelledError as error:
            raise self.cancelled(name, error) from None
        except Exception as error:
            mark_worker(error, worker.name)
            raise
        finally:
            self.forget(future)
        self.timeline.add(back.span(name, time.time()))
        return back.result

    def tell(self, call: str, function: Callable[[*Arguments], object], *args: *Arguments) -> None:
        """Call a function that returns at once on every worker that may run `call`, beside its work, without waiting.
        A worker that is away misses it, and one that has not answered the last one: it may have stopped."""

        def ask(address: str) -> None:
            with suppress(Exception):  # the worker or the scheduler has gone
                self.client.run(function, *args, workers=[address], on_error="ignore")
            self._told.discard(address)

        for address in {offer.address for offer in self.offers(call)} - self._told:
            self._told.add(address)
            threading.Thread(target=ask, args=(address,), name="telling", daemon=True).start()
