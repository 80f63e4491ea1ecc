"""What one caller of a queue waits for."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any


@dataclass(frozen=True, eq=False)
class Batch:
    """Items of one call."""

    number: int
    function: Callable[..., Any]
    items: Sequence[tuple[Any, ...]]
    order: tuple[int, ...]
    check: Callable[[int, Any], str] | None  # of an index and its result: why it is refused, or nothing
    at_once: tuple[type[Exception], ...]  # what is raised whichever worker raised it first
    returned: SimpleQueue[tuple[int, Any] | BaseException] = field(default_factory=SimpleQueue)

    def results(self) -> Iterator[tuple[int, Any]]:
        """Of every item, as they come in; raises what ended the batch."""
        for _ in range(len(self.items)):
            returned = self.returned.get()
            if isinstance(returned, BaseException):
                raise returned
            yield returned
