"""Where an error comes from: one that a worker raised names it, so that nobody looks for the cause on this machine."""

_KEY = "_rlvf_worker"  # of an exception's own attributes, which travel with it


def mark_worker(error: BaseException, worker: str) -> None:
    """This worker, by its name, raised it."""
    vars(error)[_KEY] = worker  # not by `setattr`, which an exception may refuse


def worker_of(error: BaseException) -> str | None:
    """The name of the worker that raised it; None where that was this process."""
    return vars(error).get(_KEY)
