"""Leases that cannot get at their weights are made again once these are mended, and every item comes once."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from infra.dispatch.shares import Sizes
from infra.dispatch.speeds import Made
from infra.storage.manifest import NotThere, StoreError, Torn
from tasks.mending import Mend, Mending, leased, no_mend

NAMES = ["a", "b", "c", "d"]


def named(index: int) -> tuple[str]:
    return (NAMES[index],)


class Cluster:
    """Stands in for a Dispatch: hands out leases, and meets damaged weights after every two of them."""

    def __init__(self) -> None:
        self.handed_out: list[str] = []
        self.mended: list[str] = []
        self.at_once: list[tuple[type[Exception], ...]] = []

    def lease(
        self,
        call: str,
        function: Callable[[str], str],
        items: Sequence[tuple[str]],
        *,
        order: tuple[int, ...],
        check: Callable[[int, str], str],
        at_once: tuple[type[Exception], ...],
        done: Callable[[int, str, str], bool],
        without: Callable[[int], frozenset[str]],
        cuts: Any,
        tokens: Callable[[int], int],
    ) -> Iterator[tuple[int, str]]:
        assert (call, order, cuts) == ("generate", (3, 0), None)
        assert [without(at) for at in range(len(items))] == [frozenset(item) for item in items]
        assert [tokens(at) for at in range(len(items))] == [ord(name) for (name,) in items]
        self.at_once.append(at_once)
        for index in reversed(range(len(items))):
            if len(self.handed_out) // 2 > len(self.mended):
                raise Torn("v3 is torn")
            (name,) = items[index]
            self.handed_out.append(name)
            result = function(name)
            assert check(index, result) == ""
            assert done(index, result, f"worker of {name}")
            yield index, result

    def mend(self, error: StoreError) -> None:
        self.mended.append(str(error))


def leases(cluster: Any, mend: Mend) -> dict[int, str]:
    return dict(leasing(cluster, Mending(mend)))


def leasing(cluster: Any, mending: Mending) -> Iterator[tuple[int, str]]:
    def check(index: int, result: str) -> str:
        return "" if result == NAMES[index].upper() else "another"

    makers: dict[int, Any] = {}
    call = cluster, "generate", str.upper, named, range(len(NAMES))

    def note(index: int, result: str, worker: Any) -> bool:
        assert check(index, result) == ""
        makers[index] = worker
        return True

    calls = leased(
        *call,
        check=check,
        mending=mending,
        order=(3, 0),
        done=note,
        without=lambda index: frozenset(named(index)),
        tokens=lambda index: ord(NAMES[index]),
    )
    for index, result in calls:
        assert makers[index] == f"worker of {NAMES[index]}"
        yield index, result


def test_what_is_left_is_leased_again_and_checked_as_what_it_is() -> None:
    cluster = Cluster()
    returned = leases(cluster, cluster.mend)
    assert returned == {0: "A", 1: "B", 2: "C", 3: "D"}
    assert cluster.handed_out == ["d", "c", "b", "a"]
    assert cluster.mended == ["v3 is torn"]
    assert cluster.at_once == [(Torn, NotThere), ()]  # what is still torn then may be so on one machine only


class Halves:
    """Items of several letters that are cut."""

    def __init__(self) -> None:
        self.letters = ["abcd", "ef"]

    def sizes(self, index: int) -> Sizes | None:
        return Sizes(1, 1.0) if index == 0 else None

    def units(self, index: int) -> int:
        return len(self.letters[index])

    def cut(self, index: int, units: int) -> int:
        letters = self.letters[index]
        self.letters[index] = letters[:units]
        self.letters.append(letters[units:])
        return len(self.letters) - 1

    def made(self, index: int, result: str) -> Made:
        return Made(float(index), len(result))


def test_what_was_cut_from_an_item_is_leased_again_too() -> None:
    halves, asked = Halves(), list[tuple[list[int], list[Sizes | None]]]()

    class Cutting:
        """Cuts an item, hands out the first part of it, and meets damaged weights."""

        def lease(self, _: str, function: Any, items: Any, *, cuts: Any, **_others: Any) -> Iterator[tuple[int, str]]:
            at_first = len(items)
            asked.append(([cuts.units(at) for at in range(at_first)], [cuts.sizes(at) for at in range(at_first)]))
            if len(asked) == 1:
                assert cuts.cut(0, 1) == 2
                assert len(items) == 3
                yield 2, function(*items[2])
                raise Torn("v3 is torn")
            assert cuts.made(1, "xyz") == Made(1.0, 3)
            for index in range(at_first):
                yield index, function(*items[index])

    cluster: Any = Cutting()
    calls = leased(
        cluster, "generate", str.upper, lambda index: (halves.letters[index],), range(2),
        check=lambda *_: "", mending=Mending(lambda _: None), cuts=halves,
    )  # fmt: skip
    assert list(calls) == [(2, "BCD"), (0, "A"), (1, "EF")]
    assert asked == [([4, 2], [Sizes(1, 1.0), None]), ([1, 2], [Sizes(1, 1.0), None])]


def test_where_nobody_can_mend_it_is_an_error() -> None:
    cluster = Cluster()
    with pytest.raises(Torn, match="v3 is torn"):
        leases(cluster, no_mend)
    assert cluster.at_once == [()]


def test_what_another_has_had_mended_meanwhile_is_not_mended_again() -> None:
    class Late(Cluster):
        def lease(self, *args: Any, **kwargs: Any) -> Iterator[tuple[int, str]]:
            if not self.at_once:
                self.at_once.append(kwargs["at_once"])
                mending.mend(Torn("v3 is torn"), 0)
                raise Torn("v3 is torn")
            yield from super().lease(*args, **kwargs)

    cluster = Late()
    mending = Mending(cluster.mend)
    assert dict(leasing(cluster, mending)) == {0: "A", 1: "B", 2: "C", 3: "D"}
    assert cluster.mended == ["v3 is torn"]
    assert cluster.at_once == [(Torn, NotThere), ()]
