"""Leases of generators that cannot get at the weights: once these are mended, what is left is leased again."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from infra.storage.manifest import NotThere, StoreError, Torn

Item = TypeVar("Item")  # the arguments of a lease
T = TypeVar("T")
Mend = Callable[[StoreError], None]  # raises what it cannot mend
AtOnce = tuple[type[Exception], ...]  # of `Dispatch.lease`
MENDABLE = (Torn, NotThere)


def no_mend(error: StoreError) -> None:
    """Where nobody holds the weights."""
    raise error


class _Left(Sequence[Item]):
    """The items that are left, each made when it is handed out."""

    def __init__(self, items: Sequence[Item], indices: Sequence[int]) -> None:
        self.items, self.indices = items, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: Any) -> Any:
        return self.items[self.indices[index]]


def leased(
    lease: Callable[[Sequence[Item], Callable[[int, T], str], AtOnce], Iterator[tuple[int, T]]],
    items: Sequence[Item],
    check: Callable[[int, T], str],
    mend: Mend,
) -> Iterator[tuple[int, T]]:
    """What ``lease(items, check, at_once)`` yields, of every item once. What was mended before is tried on another
    worker first: it may be one machine alone that cannot get at the weights."""
    left = list(range(len(items)))
    at_once: AtOnce = () if mend is no_mend else MENDABLE
    while left:
        asked = tuple(left)

        def check_left(at: int, result: T, asked: Sequence[int] = asked) -> str:
            return check(asked[at], result)

        try:
            for index, result in lease(_Left(items, asked), check_left, at_once):
                left.remove(asked[index])
                yield asked[index], result
        except MENDABLE as error:
            mend(error)
            at_once = ()
