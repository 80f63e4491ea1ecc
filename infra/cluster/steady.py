"""A clock that is never set, for what Dask does after a while; a preload of Dask's for every process of a cluster. It
takes the time of day, which jumps where a machine that starts without a clock of its own hears the time, or somebody
sets it."""

import time

from distributed import batched, scheduler, semaphore
from tornado.ioloop import IOLoop

_BEGAN = time.time() - time.monotonic()  # so that it goes on from the time of day for a loop that runs already


def steady() -> float:
    """Seconds by a clock that is never set."""
    return _BEGAN + time.monotonic()


def dask_setup(_: object) -> None:
    """Called by Dask in a process that becomes a scheduler, a nanny or a worker."""
    count_by_steady_clock()


def count_by_steady_clock() -> None:
    """Have all event loops of this process, the messages of its workers, its scheduler and that one's locks count
    seconds by a clock that is never set, and that stands still while the machine sleeps.

    Set back by an hour, a worker would send no sign of life for an hour, and no result either if it had sent something
    in the last milliseconds; a jump of more than 30 s would take a lock from an owner in good health, one of 60 s
    the workers from the cluster.
    """
    IOLoop.time = lambda _: steady()  # type: ignore[method-assign, assignment]
    for module in (batched, scheduler, semaphore):
        vars(module)["time"] = steady  # the name by which these call their clock
