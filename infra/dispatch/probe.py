"""A call that every capable worker runs once, before others of its kind are leased to them."""

import concurrent.futures
import time
from collections.abc import Callable
from typing import TypeVar, TypeVarTuple

from distributed.client import FutureCancelledError
from distributed.scheduler import KilledWorker, NoValidWorkerError

from infra.cluster.placement import Offer
from infra.dispatch.dispatch import Dispatch
from infra.errors import mark_worker

T = TypeVar("T")
Arguments = TypeVarTuple("Arguments")
POLL_SECONDS = 1.0


def probe_workers(
    dispatch: Dispatch, call: str, function: Callable[[*Arguments], T], *args: *Arguments
) -> list[tuple[Offer, T | Exception]]:
    """The result of `function(*args)` on each worker, or what it raised there. A worker that dies in it, or comes back
    later than `dispatch.late_after` seconds after the first result, is left out.

    Raises `DispatchStoppedError`, `SchedulerLostError`.
    """
    dispatch.going.wait()
    excluded = dispatch.exclusions.excluded
    capable = [worker for worker in dispatch.offers(call) if not excluded(call, worker)]
    futures = [(worker, dispatch.submit(call, function, *args, worker=worker.address)) for worker in capable]
    fetching = {dispatch.fetch(future): worker for worker, future in futures}
    found: list[tuple[Offer, T | Exception]] = []
    waiting, until = set(fetching), float("inf")
    try:
        while waiting and time.monotonic() < until:
            done, waiting = concurrent.futures.wait(
                waiting, POLL_SECONDS, return_when=concurrent.futures.FIRST_COMPLETED
            )
            for one in done:
                worker = fetching[one]
                try:
                    back = one.result()
                except (KilledWorker, NoValidWorkerError):
                    dispatch.count(call)
                except FutureCancelledError as error:
                    raise dispatch.cancelled(call, error) from None
                except Exception as error:  # noqa: BLE001 - what the function raised
                    mark_worker(error, worker.name)
                    found.append((worker, error))
                else:
                    dispatch.timeline.add(back.span(call, time.time()))
                    found.append((worker, back.result))
                    until = min(until, time.monotonic() + dispatch.late_after)
    finally:
        dispatch.forget(*(future for _, future in futures))
    return found


def each_well(dispatch: Dispatch, call: str, function: Callable[[*Arguments], T], *args: *Arguments) -> list[T]:
    """The results of `probe_workers`; of the workers on which it raises something none is called so any more. Waits for
    one where there is none.

    Raises, also what `function` has raised where it did so on all.
    """
    found = probe_workers(dispatch, call, function, *args)
    if not found:
        return [dispatch.run(call, function, *args)]
    failed = [(worker, error) for worker, error in found if isinstance(error, Exception)]
    if len(failed) == len(found):
        raise failed[0][1]
    for worker, error in failed:
        dispatch.exclusions.leave_out(call, worker, error)
    return [result for _, result in found if not isinstance(result, Exception)]
