"""Calls on tagged workers that survive the death of a worker.

Every call is idempotent by contract: it may run twice, and one whose worker died is simply submitted again. A finished
call may run twice as well: Dask computes a result anew when its worker dies before the result was fetched.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from distributed import Client, secede
from distributed.client import FutureCancelledError
from distributed.scheduler import KilledWorker, NoValidWorkerError

from infra.cluster.calls import Calls, PoisonedCallError, nobody_listens
from infra.cluster.leases import LeaseQueue
from infra.cluster.placement import PlacementConfig, worker_name
from infra.cluster.timeline import Measured, Span, measured
from infra.cluster.watch import Watch

T = TypeVar("T")
ALONE = ("train",)  # calls that write where the next one reads: never on two workers at a time


def leave_thread() -> None:
    """For a call that runs aside: from here on its worker may start the next one. Outside of a worker nothing."""
    with suppress(ValueError):
        secede()  # type: ignore[no-untyped-call]


class Dispatch(Calls):
    """Calls that come to their end whatever happens to workers: one at a time, many in leases, or only told.

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
        `late_after`: no lease is handed to a second worker before so many seconds."""
        super().__init__(client, placement, say)
        self.attempts = attempts
        self.patience = patience
        self.late_after = late_after
        self._watch = Watch(self)
        self._queues: dict[str, LeaseQueue] = {}  # by call
        self._last: dict[str, str] = {}  # the address of the worker that came back with a call last, by call

    def __enter__(self) -> Self:
        self._watch.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._watch.stop()
        super().__exit__(kind, error, at)

    def run(
        self,
        call: str,
        function: Callable[..., T],
        *args: Any,
        aside: str | None = None,
        begun: Callable[[], None] = lambda: None,
    ) -> T:
        """The result of `function(*args)`; submitted again when its worker dies. But for those in `ALONE` it is a lease
        of its own, so that another worker gets it too where one is late.

        With a name in `aside`, which the timeline has then, it goes to the worker that ran `call` last and takes none
        of its tags: the next such call may run while it does, as soon as it leaves its thread (`leave_thread`). `begun`
        is called when the cluster has it: what is submitted after that starts after it on that worker.

        What the function raises is raised here at once. Otherwise: `PoisonedCallError` after `attempts` deaths,
        `PlacementError` when no worker offered the tags for a minute, `DispatchStoppedError`, `SchedulerLostError`.
        """
        if call not in ALONE and aside is None:
            ((_, result),) = self.lease(call, function, [args])
            return result
        name = aside or call
        for _ in range(self.attempts):
            self.going.wait()
            worker = self._last_worker(call) if aside else None
            future = self.submit(call, measured, function, *args, worker=worker, aside=aside)
            begun()
            since = time.time()
            try:
                back: Measured[T] = future.result()
            except KilledWorker as killed:
                self.count(name)
                self.timeline.add(Span(worker_name(killed.last_worker.name), name, since, time.time(), lost=True))
            except NoValidWorkerError:
                if aside:  # the worker that it was meant for is gone
                    self.count(name)
                    continue
                raise self.unsatisfied(call) from None
            except FutureCancelledError as error:
                raise self.cancelled(name, error) from None
            else:
                self._last[call] = back.address
                self.timeline.add(back.span(name, time.time()))
                return back.result
            finally:
                self.forget(future)
        raise PoisonedCallError(name, self.attempts)

    def lease(
        self,
        call: str,
        function: Callable[..., T],
        items: Sequence[tuple[Any, ...]],
        *,
        order: tuple[int, ...] = (),
        check: Callable[[int, T], str] | None = None,
    ) -> Iterator[tuple[int, T]]:
        """`(index, function(*items[index]))` of every item, once each, in the order in which they come in.

        All leases of a call wait in one queue, those with the smaller `order` first: whenever a worker has nothing, it
        gets the first of them, and `items[index]` is read at that moment. So a slow worker does less; a worker that
        joins is used at once; one that is lost costs its lease, and the result before it if that had not come in yet.
        One that is late (`Schedule`) is not waited for where another has nothing to do: the first result counts.
        What `check(index, result)` has words for is refused and done again; a worker that returned such a thing three
        times gets no more leases.

        Nothing is handed out before the first result is asked for. Closing the iterator cancels what is under way, and
        so does `hold`, whose items are handed out anew when it is over. Raises as `run` does.
        """
        with self._lock:
            if call not in self._queues:
                self._queues[call] = LeaseQueue(
                    self, call, attempts=self.attempts, patience=self.patience, late_after=self.late_after
                )
        return self._queues[call].results(function, items, order, check)

    def tell(self, call: str, function: Callable[..., object], *args: Any) -> None:
        """Call a function that returns at once on every worker that may run `call`, beside whatever it does. Nobody
        waits for that: a worker that is away misses it."""

        def ask(address: str) -> None:
            with suppress(Exception):  # the worker or the scheduler has gone
                self.client.run(function, *args, workers=[address], on_error="ignore")

        for worker in self.offers(call):
            threading.Thread(target=ask, args=(worker.address,), name="telling", daemon=True).start()

    def _last_worker(self, call: str) -> str | None:
        """The address of the worker that ran `call` last, of another that may if it is gone."""
        capable = [offer.address for offer in self.offers(call)]
        last = self._last.get(call)
        return last if last in capable else next(iter(capable), None)
