"""Leases that cannot get at their weights are made again once these are mended, and every item comes once."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from infra.storage.manifest import NotThere, StoreError, Torn
from tasks.mending import AtOnce, leased, no_mend

ITEMS = [("a",), ("b",), ("c",), ("d",)]


class Cluster:
    """Hands out leases, and meets damaged weights after every two of them."""

    def __init__(self) -> None:
        self.handed_out: list[str] = []
        self.mended: list[str] = []
        self.at_once: list[AtOnce] = []

    def lease(
        self, items: Sequence[tuple[Any, ...]], check: Callable[[int, str], str], at_once: AtOnce
    ) -> Iterator[tuple[int, str]]:
        self.at_once.append(at_once)
        for index in reversed(range(len(items))):
            if len(self.handed_out) // 2 > len(self.mended):
                raise Torn("v3 is torn")
            (name,) = items[index]
            self.handed_out.append(name)
            assert check(index, name) == ""
            yield index, name

    def mend(self, error: StoreError) -> None:
        self.mended.append(str(error))


def test_what_is_left_is_leased_again_and_checked_as_what_it_is() -> None:
    cluster = Cluster()
    returned = dict(
        leased(cluster.lease, ITEMS, lambda index, name: "" if ITEMS[index] == (name,) else "another", cluster.mend)
    )
    assert returned == {0: "a", 1: "b", 2: "c", 3: "d"}
    assert cluster.handed_out == ["d", "c", "b", "a"]
    assert cluster.mended == ["v3 is torn"]
    assert cluster.at_once == [(Torn, NotThere), ()]  # what is still torn then may be so on one machine only


def test_where_nobody_can_mend_it_is_an_error() -> None:
    cluster = Cluster()
    with pytest.raises(Torn, match="v3 is torn"):
        list(leased(cluster.lease, ITEMS, lambda *_: "", no_mend))
    assert cluster.at_once == [()]
