"""Whether anybody still waits for what a worker is computing."""

from collections.abc import Callable

from distributed import get_worker


class UnwantedError(Exception):
    """The call was given up by its caller, or its caller is gone; nobody sees this."""


def cancellation_check() -> Callable[[], None]:
    """For the call that runs on this worker: what it calls now and then, which raises `UnwantedError` once the call was
    cancelled, its client is gone, or the scheduler is. Outside of a worker it does nothing.

    Dask drops a cancelled task but cannot stop a thread that runs it; such a call would keep its worker from the next.
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
