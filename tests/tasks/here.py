"""A cluster's calls in this process."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any


class Here:
    """In place of a `Dispatch`."""

    offers = staticmethod(lambda *_, **__: [])
    require = staticmethod(lambda *_: None)

    def run(self, _: str, call: Callable[..., Any], *args: Any) -> Any:
        return call(*args)

    def lease(
        self, _: str, call: Callable[..., Any], parts: Sequence[tuple[Any, ...]], **__: Any
    ) -> Iterator[tuple[int, Any]]:
        return ((index, call(*part)) for index, part in enumerate(parts))
