"""Whether the call that a worker runs was cancelled."""

from collections.abc import Callable

from distributed import get_worker


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
