"""A machine on which every lease dies, as one with too little memory: others do its leases, and the call ends."""

import os
import signal
import time
from pathlib import Path

import pytest
from distributed import get_worker

from infra.cluster.placement import Offer
from infra.dispatch.calls import PoisonedCallError
from infra.dispatch.deaths import Deaths
from infra.dispatch.dispatch import Dispatch
from infra.dispatch.items import Item

ITEM, OTHER = Item((0,), 0, 0), Item((0,), 0, 1)


def there(*names: str) -> dict[str, Offer]:
    """Workers, by an address that is another for each that comes."""
    return {f"tcp://{name}-{at}": Offer(f"tcp://{name}-{at}", name, {}) for at, name in enumerate(names)}


def test_others_are_asked_where_one_dies_of_it_again() -> None:
    deaths = Deaths()
    deaths.add(ITEM, "a")
    deaths.look(there("a", "b"))
    assert deaths.without(ITEM) == frozenset()
    deaths.add(ITEM, "a")
    deaths.look(there("b", "a"))
    assert (deaths.without(ITEM), deaths.without(OTHER)) == ({"tcp://a-1"}, frozenset())
    deaths.split(ITEM, OTHER)
    deaths.look(there("a"))
    assert deaths.without(OTHER) == {"tcp://a-0"}
    deaths.forget([ITEM])
    assert (deaths.without(ITEM), deaths.of(ITEM).total(), deaths.of(OTHER).total()) == (frozenset(), 0, 2)


@pytest.mark.parametrize(
    ("died", "others", "fatal"),
    [
        (["a", "a"], [], False),
        (["a", "a", "a"], ["a"], True),
        (["a", "a", "a", "a"], ["a", "b"], False),
        (["a", "a", "b"], ["a", "b", "c"], True),
        (["a", "b", "c"], ["d"], True),
    ],
)
def test_it_is_the_item_that_kills_where_several_died_or_nobody_else_is_there(
    died: list[str], others: list[str], fatal: bool
) -> None:
    deaths = Deaths()
    for name in died:
        deaths.add(ITEM, name)
    assert deaths.is_fatal(ITEM, 3, there(*others)) is fatal


@pytest.mark.slow
def test_one_machine_that_dies_in_every_lease_ends_nothing(dispatch: Dispatch, tmp_path: Path) -> None:
    def call(_: int) -> str:
        name, began = str(get_worker().name), time.monotonic()
        deaths = len(list(tmp_path.glob("died*")))
        if name == "generator-0":
            (tmp_path / f"died {deaths}").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        while len(list(tmp_path.glob("died*"))) < 3 and time.monotonic() < began + 12:
            time.sleep(0.05)  # its successors have time to die of the same lease
        return name

    assert [name for _, name in dispatch.lease("generate", call, [(at,) for at in range(2)])] == ["generator-1"] * 2
    assert len(list(tmp_path.glob("died*"))) == 2


@pytest.mark.slow
def test_what_kills_two_machines_is_given_up_and_they_are_named(dispatch: Dispatch) -> None:
    def call() -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    with pytest.raises(PoisonedCallError, match=r"3 workers died while they ran the same call \(generator-\d"):
        list(dispatch.lease("generate", call, [()]))
