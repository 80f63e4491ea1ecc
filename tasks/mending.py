"""Leases of generators that cannot get at the weights: once these are mended, what is left is leased again."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from threading import Lock
from typing import Any, TypeVar, TypeVarTuple

from infra.cluster.placement import Offer
from infra.dispatch.dispatch import Dispatch
from infra.dispatch.lease_batch import Cuts
from infra.dispatch.shares import Sizes
from infra.dispatch.speeds import Made
from infra.storage.manifest import NotThere, StoreError, Torn

T = TypeVar("T")
Item = TypeVar("Item")
Arguments = TypeVarTuple("Arguments")  # of the function that is leased
Mend = Callable[[StoreError], None]  # raises what it cannot mend
MENDABLE = (Torn, NotThere)


def no_mend(error: StoreError) -> None:
    """Where nobody holds the weights."""
    raise error


class Mending:
    """What several calls of `leased` may share: whatever one of them has had mended is mended for those that run beside
    it. Safe to use from several threads."""

    def __init__(self, mend: Mend) -> None:
        self._mend = mend
        self._lock = Lock()
        self.times = 0

    @property
    def at_once(self) -> tuple[type[Exception], ...]:
        """What is mended as soon as one worker raises it: the first time, as later on it may be that machine alone."""
        return () if self._mend is no_mend or self.times else MENDABLE

    def mend(self, error: StoreError, before: int) -> None:
        """Mend, unless that was done since it had been done so many times. Raises what cannot be mended."""
        with self._lock:
            if self.times == before:
                self._mend(error)
                self.times += 1


class _Left(Sequence[Item]):
    """The arguments of the leases that are left, each made when it is handed out."""

    def __init__(self, make: Callable[[int], Item], indices: list[int]) -> None:
        self.make, self.indices = make, indices

    def __len__(self) -> int:
        return len(self.indices)

    def __getitem__(self, index: Any) -> Any:
        return self.make(self.indices[index])


class _LeftCuts:
    """How those that are left are cut; `left` gets what is new too."""

    def __init__(self, cuts: Cuts, indices: list[int], left: list[int]) -> None:
        self._cuts, self._indices, self._left = cuts, indices, left

    def sizes(self, index: int) -> Sizes | None:
        return self._cuts.sizes(self._indices[index])

    def units(self, index: int) -> int:
        return self._cuts.units(self._indices[index])

    def cut(self, index: int, units: int) -> int:
        new = self._cuts.cut(self._indices[index], units)
        self._left.append(new)
        self._indices.append(new)
        return len(self._indices) - 1

    def made(self, index: int, result: Any) -> Made:
        return self._cuts.made(self._indices[index], result)


def leased(
    dispatch: Dispatch,
    call: str,
    function: Callable[[*Arguments], T],
    make: Callable[[int], tuple[*Arguments]],
    indices: Iterable[int],
    *,
    check: Callable[[int, T], str],
    mending: Mending,
    order: tuple[int, ...] = (),
    done: Callable[[int, T, Offer], bool] = lambda *_: True,
    without: Callable[[int], frozenset[str]] = lambda _: frozenset(),
    cuts: Cuts | None = None,
    tokens: Callable[[int], int] = lambda _: 0,
) -> Iterator[tuple[int, T]]:
    """`(index, function(*make(index)))` of these indices, and of what is cut from them, once each, as
    `Dispatch.lease` yields them; ``make`` is called when the lease is handed out, ``done`` and others as there. After
    the weights were mended once, what is left is tried on another worker first: it may be one machine alone that cannot
    read them."""
    left = list(indices)
    while left:
        asked, before = list(left), mending.times

        def check_left(at: int, result: T, asked: Sequence[int] = asked) -> str:
            return check(asked[at], result)

        def done_left(at: int, result: T, worker: Offer, asked: Sequence[int] = asked) -> bool:
            return done(asked[at], result, worker)

        def without_left(at: int, asked: Sequence[int] = asked) -> frozenset[str]:
            return without(asked[at])

        def tokens_left(at: int, asked: Sequence[int] = asked) -> int:
            return tokens(asked[at])

        try:
            items = _Left(make, asked)
            for at, result in dispatch.lease(
                call,
                function,
                items,
                order=order,
                check=check_left,
                at_once=mending.at_once,
                done=done_left,
                without=without_left,
                cuts=None if cuts is None else _LeftCuts(cuts, asked, left),
                tokens=tokens_left,
            ):
                left.remove(asked[at])
                yield asked[at], result
        except MENDABLE as error:
            mending.mend(error, before)
