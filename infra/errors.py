"""What an error says in one line, what caused it, and which worker raised it."""

from collections.abc import Iterator

from pydantic import ValidationError

_KEY = "_rlvf_worker"  # attribute of an exception, which pickles with it


def one_line(error: BaseException) -> str:
    """The message on one line; the name of the error's type where it has none."""
    return " ".join(str(error).split()) or type(error).__name__


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """The error, and what caused it, down to the first cause."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__


def first_fault(error: ValidationError) -> tuple[str, str]:
    """(dotted path of the field, "" for the whole; what is wrong with it), without the value, which may be a secret."""
    first = error.errors(include_url=False, include_input=False)[0]
    return ".".join(map(str, first["loc"])), first["msg"]


def mark_worker(error: BaseException, worker: str) -> None:
    """Note in the error the name of the worker that raised it, so that nobody looks for the cause on this machine."""
    vars(error)[_KEY] = worker  # not by `setattr`, which an exception may refuse


def worker_of(error: BaseException) -> str | None:
    """The name of the worker that raised it; None where that was this process."""
    return vars(error).get(_KEY)
