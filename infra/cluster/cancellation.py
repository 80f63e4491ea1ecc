"""Whether the call that a worker runs was cancelled, or its worker was asked to leave."""

from collections.abc import Callable

from distributed import Status, get_worker


class UnwantedError(Exception):
    """The call was cancelled, or its caller is gone; raised on the worker, seen by no caller."""


def cancellation_check() -> Callable[[], None]:
    """A check that the call on this worker makes now and then: it raises `UnwantedError` once the call was cancelled,
    its client is gone, or the scheduler is. Outside of a worker it does nothing.

    Dask drops a cancelled task but cannot stop the thread that runs it, which would keep its worker from the next call.
    """
    try:
        worker = get_worker()
        key = worker.get_current_task()
    except (ValueError, AttributeError):
        return lambda: None
    task = worker.state.tasks[key]

    def check() -> None:
        if task.state != "executing":
            raise UnwantedError(str(key))

    return check


def leaving_check() -> Callable[[], bool]:
    """Whether this worker was asked to leave: it gets no calls any more, and what it has is waited for a few seconds
    (`infra.cluster.membership`). Outside of a worker never."""
    try:
        worker = get_worker()
    except ValueError:
        return lambda: False
    return lambda: worker.status in (Status.closing_gracefully, Status.closing)
