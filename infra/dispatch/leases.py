"""Leases: the items of one call, handed out to its workers one at a time, as they come back for the next."""

import concurrent.futures
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext, suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from distributed.client import FutureCancelledError
from distributed.scheduler import KilledWorker, NoValidWorkerError

from infra.cluster.placement import Offer
from infra.cluster.timeline import Measured, Span
from infra.dispatch.calls import Calls, DispatchError, DispatchStoppedError
from infra.dispatch.crew import Crew
from infra.dispatch.deaths import poisoned
from infra.dispatch.handed_out import HandedOut
from infra.dispatch.items import Assignment
from infra.dispatch.lease_batch import LeaseBatch
from infra.dispatch.schedule import Schedule
from infra.errors import mark_worker

GATHER_SECONDS, GATHER = 1e-4, 0.01  # for each lease that is out, and of the longest: in which events come together
POLL_SECONDS = 0.25  # that the next event is waited for, and a change of what may be handed out


class LeaseQueue:
    """The items of one call, for any number of threads that ask for results. A thread of its own hands them out while
    there are any; other threads reach it by events."""

    def __init__(self, calls: Calls, call: str, *, attempts: int, patience: float, late_after: float) -> None:
        """`attempts`: deaths on an item that end it; `patience`: without a worker; `late_after`: of Schedule."""
        self._calls, self._call, self._attempts = calls, call, attempts
        self._crew = Crew(calls, call, patience)
        self._schedule = Schedule(late_after, cut=lambda item, units: self._batches[item.batch].cut(item, units))
        self._batches: dict[int, LeaseBatch] = {}
        self._out: dict[Assignment, HandedOut] = {}
        self._events: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self._lock = threading.Lock()  # of the next
        self._driver: threading.Thread | None = None
        self._handed_out = 0.0  # when that was last

    def results(self, batch: LeaseBatch) -> Iterator[tuple[int, Any]]:
        """`(index, result)` of every item, as they come in; closing the iterator cancels its assignments."""
        self._tell(partial(self._add, batch))
        try:
            yield from batch.results()
        finally:
            # Not by `_tell`: the thread runs as long as it has this batch, and none may be started here, which the
            # collection of an unused iterator may reach at the end of the process.
            self._events.put(partial(self._withdraw, batch))

    # -- the thread

    def _tell(self, event: Callable[[], None]) -> None:
        """Queue an event, and start the thread if it does not run."""
        with self._lock:
            self._events.put(event)
            if self._driver is None:
                self._driver = threading.Thread(target=self._drive, name=f"{self._call} leases", daemon=True)
                self._driver.start()

    def _drive(self) -> None:
        while True:
            try:
                self._turn()
            except BaseException as error:  # noqa: BLE001 - every caller raises it
                for batch in list(self._batches.values()):
                    with suppress(Exception):  # of taking back the rest
                        self._fail(batch, error)
            with self._lock:
                if not self._batches and self._events.empty():
                    self._driver = None
                    return

    def _turn(self) -> None:
        """Hand out assignments, and handle the next event."""
        if self._batches:
            if not self._calls.going.is_set():
                self._forget(self._schedule.take_back())
                self._calls.going.wait()
                self._crew.begin()  # who was there in a pause counts for nothing
            if self._calls.stopped:
                raise DispatchStoppedError(self._call)
            if self._crew.is_old:
                self._poll()
            self._hand_out()
        try:
            event = self._events.get(timeout=POLL_SECONDS)
        except Empty:
            return
        event()
        time.sleep(min(GATHER_SECONDS * len(self._out), GATHER * self._schedule.lateness.longest))
        for _ in range(self._events.qsize()):
            self._events.get()()

    def _fail(self, batch: LeaseBatch, error: BaseException) -> None:
        batch.returned.put(error)  # first: whatever comes of taking back the rest, its caller knows
        self._withdraw(batch)

    # -- its events

    def _add(self, batch: LeaseBatch) -> None:
        if not self._batches:
            self._crew.begin()
        self._batches[batch.number] = batch
        self._schedule.add(batch.waiting())

    def _withdraw(self, batch: LeaseBatch) -> None:
        if self._batches.pop(batch.number, None) is not None:
            self._calls.exclusions.forgive(self._call, self._schedule.unsettled(batch.number))
            self._forget(self._schedule.withdraw(batch.number))
            self._unawait(each for each in self._schedule.assignments if each.item.batch == batch.number)
            if not self._batches:
                self._calls.lacking.pop(self._call, None)

    def _back(self, assigned: Assignment) -> None:
        """An assignment's future is done, or lost; called in a thread of Dask's."""
        self._calls.silent.discard(assigned.worker)
        self._events.put(partial(self._finished, assigned, time.time(), time.monotonic()))

    def _finished(self, assigned: Assignment, moment: float, now: float) -> None:
        """An assignment's future is done, or lost: fetch what it holds."""
        self._calls.silent.discard(assigned.worker)  # it may have come back while it was found to be late
        if (out := self._out.get(assigned)) is None:
            return  # it was taken back, or its worker had vanished before
        if out.future.status in ("finished", "error") and assigned.late and not assigned.is_first:
            self._calls.say(f"{out.worker.name} came back with {self._call} after {out.seconds:.0f} s")
        if out.future.status == "finished":
            self._schedule.finished(assigned, now)  # the worker need not wait until the result is here
        fetching = self._calls.fetch(out.future)
        fetching.add_done_callback(lambda done: self._events.put(partial(self._fetched, assigned, moment, done)))

    def _fetched(self, assigned: Assignment, at: float, fetched: "concurrent.futures.Future[Measured[Any]]") -> None:
        """An assignment's result is here, or its error."""
        if (out := self._out.get(assigned)) is None:
            return
        try:
            back = fetched.result()
        except (KilledWorker, NoValidWorkerError):
            self._lose(assigned)
            self._crew.changed()
            return
        except FutureCancelledError as error:
            raise self._calls.cancelled(self._call, error) from None
        except Exception as error:  # noqa: BLE001 - what the function raised
            self._failed(assigned, out, error)
            return
        self._drop(assigned)
        if back.leaving:
            self._crew.changed()
            self._take_from(out.worker, begun=False)  # what it was given since
        try:
            self._take(assigned, out, back, at)
        except DispatchError:
            raise
        except Exception as error:  # noqa: BLE001 - what its caller makes of results: others' batches go on
            self._fail(out.batch, error)

    def _take(self, assigned: Assignment, out: HandedOut, back: Measured[Any], at: float) -> None:
        """Have the batch check a result, and take it."""
        check = out.batch.check
        if check is not None and self._schedule.wants(assigned) and (why := check(assigned.item.index, back.result)):
            self._calls.timeline.add(back.span(self._call, at, dropped=True))
            self._schedule.give_back(assigned)
            self._calls.exclusions.refuse(self._call, out.worker, why)
            self._leave_out(out.worker)
            return
        first, others = self._schedule.done(assigned)
        self._forget(others)
        self._unawait(self._schedule.of(assigned))
        made, seconds = None, back.seconds - back.loading.seconds
        with nullcontext() if first else suppress(Exception):  # a second result was not checked
            made = None if out.batch.cuts is None else out.batch.cuts.made(assigned.item.index, back.result)
        tokens = out.batch.tokens(assigned.item.index) if made is None else int(made.tokens)
        self._calls.timeline.add(back.span(self._call, at, tokens, dropped=not first))
        over = first and out.batch.done(assigned.item.index, back.result, out.worker)
        if made is not None:
            self._schedule.measured(assigned, made, seconds, first=first, over=over)
        if not first:
            return
        self._calls.exclusions.worked(self._call, out.worker)
        if over:
            out.batch.returned.put((assigned.item.index, back.result))
        else:
            self._schedule.add([assigned.item.next()])

    def _failed(self, assigned: Assignment, out: HandedOut, error: Exception) -> None:
        """The function raised `error`. Another worker tries the item, if there is one: it may be this worker's fault.
        What two workers raise ends the batch, and so does at once an error that its caller acts upon (`at_once`)."""
        self._drop(assigned)
        if not self._schedule.wants(assigned):
            self._schedule.done(assigned)  # another has done it
            return
        mark_worker(error, out.worker.name)
        self._schedule.give_back(assigned)
        failed = self._schedule.failed[assigned.item]
        if not isinstance(error, out.batch.at_once) and failed <= {assigned.worker}:
            self._crew.changed()
            self._poll()  # a worker that has gone meanwhile does not try it
            if self._crew.capable.keys() - {assigned.worker}:
                failed.add(assigned.worker)
                self._calls.exclusions.fail(self._call, out.worker, error)
                self._leave_out(out.worker)
                return
        self._fail(out.batch, error)

    def _leave_out(self, worker: Offer) -> None:
        """Hand out anew what an excluded worker has."""
        if self._calls.exclusions.excluded(self._call, worker):
            self._crew.changed()
            self._take_from(worker)

    def _take_from(self, worker: Offer, *, begun: bool = True) -> None:
        """Hand out anew what a worker has; of one that leaves not what it has done."""
        for other in [each for each in self._out if each.worker == worker.address and (begun or not each.finished)]:
            self._schedule.give_back(other)
            self._drop(other)

    # -- leases on workers

    def _poll(self) -> None:
        """Ask which workers are present, and lose assignments of the others. Raises PlacementError as `Crew.poll`."""
        present = self._crew.poll()
        self._schedule.keep(present)
        for assigned in [assigned for assigned in self._out if assigned.worker not in present]:
            if assigned in self._out:  # its batch may have been given up for another
                self._lose(assigned)

    def _hand_out(self) -> None:
        workers, quiet, now = self._crew.capable, self._crew.quiet, time.monotonic()
        if not self._schedule.changed and now < self._handed_out + POLL_SECONDS:
            return
        self._handed_out = now
        self._schedule.lateness.patience = self._calls.took.patience
        self._schedule.deaths.look(workers)
        for assigned in self._schedule.hand_out(list(workers), now, self._calls.silent, quiet):
            if (batch := self._batches.get(assigned.item.batch)) is None:
                continue  # it was given up for the assignment before
            try:
                # Pinned and strict: Dask forgets the tags too when it may use other workers. One on an address that
                # vanished is noticed at the next poll, because Dask itself would wait for it to come back.
                future = self._calls.submit(
                    self._call,
                    batch.function,
                    *batch.items[assigned.item.index],
                    priority=-batch.order[0] if batch.order else 0,
                    worker=assigned.worker,
                )
            except DispatchError:
                raise
            except Exception as error:  # noqa: BLE001 - its arguments: the caller's own
                self._schedule.give_back(assigned)
                self._fail(batch, error)
                continue
            self._out[assigned] = HandedOut(batch, workers[assigned.worker], future, time.time())
            future.add_done_callback(lambda _, assigned=assigned: self._back(assigned))  # type: ignore[no-untyped-call]
            for late in self._schedule.late(assigned):
                self._say_late(late, f"{workers[assigned.worker].name} does the same, and the first result counts")
        for late in self._schedule.late_firsts(now):
            self._say_late(late, "another has had the same")

    def _say_late(self, assigned: Assignment, what: str) -> None:
        """Say that its worker is late and what comes of it; it gets nothing more until it answers."""
        if (out := self._out.get(assigned)) is None or assigned.worker in self._calls.silent:
            return
        if assigned.finished is None:  # else it has answered, and its result is long on the way
            self._calls.silent.add(assigned.worker)
        self._calls.say(f"{out.worker.name} has not come back with {self._call} for {out.seconds:.0f} s: {what}")

    def _lose(self, assigned: Assignment) -> None:
        """The assignment's worker is gone: its item is handed out anew, unless it kills. Who has left did not die."""
        out, item, deaths = self._drop(assigned), assigned.item, self._schedule.deaths
        self._calls.cancel([out.future])  # also if it was done: its result is being fetched, and is lost
        self._calls.silent.discard(assigned.worker)
        self._calls.count(self._call)
        self._calls.timeline.add(Span(out.worker.name, self._call, out.since, time.time(), lost=True))
        self._schedule.give_back(assigned)
        if assigned.worker not in self._crew.left and self._schedule.wants(assigned):  # unless another has done it
            deaths.add(item, out.worker.name)
        if deaths.is_fatal(item, self._attempts, self._crew.capable) and item.batch in self._batches:
            self._fail(out.batch, poisoned(self._call, deaths.of(item)))

    def _drop(self, assigned: Assignment) -> HandedOut:
        out = self._out.pop(assigned)
        self._calls.forget(out.future)
        return out

    def _forget(self, assignments: Sequence[Assignment]) -> None:
        """Cancel these assignments on their workers."""
        self._calls.forget(*(self._out.pop(assigned).future for assigned in assignments if assigned in self._out))

    def _unawait(self, assignments: Iterable[Assignment]) -> None:
        """Stop waiting for these, of late workers: another has done the same."""
        for out in filter(None, map(self._out.get, assignments)):
            self._calls.unawait(out.future)
