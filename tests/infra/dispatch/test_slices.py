"""Items that come back before they are done, on a real cluster whose workers leave or are killed meanwhile.

The functions that run on the workers are nested ones, which are sent by value: a worker cannot import this file.
"""

import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, get_worker

from infra.cluster.membership import HAND_IN_SECONDS, LEAVE_SECONDS, _hand_back
from infra.cluster.placement import Offer, offers
from infra.dispatch.dispatch import Dispatch
from tests.infra.cluster.processes import dask
from tests.processes import until

pytestmark = pytest.mark.slow


class Counts(Sequence[tuple[int, int]]):
    """Items that are counted up to three by their workers, and what was counted so far."""

    def __init__(self, items: int) -> None:
        self.so_far = [0] * items
        self.workers: list[list[str]] = [[] for _ in self.so_far]

    def __len__(self) -> int:
        return len(self.so_far)

    def __getitem__(self, index: Any) -> Any:
        return index, self.so_far[index]

    def done(self, index: int, found: int, worker: Offer) -> bool:
        assert found > self.so_far[index]
        self.so_far[index] = found
        self.workers[index].append(worker.name)
        return found >= 3


def test_an_item_that_is_not_done_goes_on_in_its_place_with_what_it_is_by_then(dispatch: Dispatch) -> None:
    def call(_: int, so_far: int) -> int:
        time.sleep(0.1)  # while the result before comes in
        return so_far + 1

    items = Counts(5)
    asked: list[int] = []

    class Watched(Counts):
        def __getitem__(self, index: Any) -> Any:
            asked.append(index)
            return items[index]

    watched = Watched(5)
    assert sorted(dispatch.lease("verify", call, watched, done=items.done)) == [(index, 3) for index in range(5)]
    assert items.workers == [["verifier-0"] * 3] * 5
    # while the result of one comes in the next is begun, and none behind that
    last = {index: place for place, index in enumerate(asked)}
    assert all(last[index] < asked.index(index + 2) for index in range(3))
    assert sum(not span.lost for span in dispatch.timeline.take()) == 15
    assert dispatch.lost == {}


def test_a_killed_worker_costs_a_slice(dispatch: Dispatch, tmp_path: Path) -> None:
    def call(item: int, so_far: int) -> int:
        if (item, so_far) == (1, 2) and not (tmp_path / "died").exists():
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        (tmp_path / f"{item}-{so_far}-{time.monotonic_ns()}").touch()
        return so_far + 1

    items = Counts(2)
    assert sorted(dispatch.lease("generate", call, items, done=items.done)) == [(0, 3), (1, 3)]
    assert dispatch.lost == {"generate": 1}
    for so_far in range(3):
        assert len(list(tmp_path.glob(f"1-{so_far}-*"))) == 1  # what was handed in is not made again


@pytest.mark.parametrize("hands_in", [True, False])
def test_who_leaves_hands_in_what_it_has_and_others_go_on(
    client: Client, dispatch: Dispatch, tmp_path: Path, hands_in: bool
) -> None:
    def call(_: int, so_far: int) -> int:
        from infra.cluster.cancellation import leaving_check

        leaving = leaving_check()
        if get_worker().name != "leaver":
            assert not leaving()
            return 3
        (tmp_path / "begun").touch()
        while not (hands_in and leaving()):
            time.sleep(0.01)
        return so_far + 1

    items = Counts(1)
    tags = "GENERATOR=1 CPU=1"
    words = ("worker", client.scheduler.address, "--name", "leaver", "--nthreads", "1", "--no-nanny")
    with dask(*words, "--resources", tags) as process:
        until(lambda: "leaver" in [offer.name for offer in offers(client)])
        (address,) = (offer.address for offer in offers(client) if offer.name == "leaver")
        others = [offer.address for offer in offers(client) if offer.name in ("generator-0", "generator-1")]
        dispatch.silent.update(others)  # nobody else is free at first
        leases = dispatch.lease("generate", call, items, done=items.done)
        found: list[Any] = []
        taking = threading.Thread(target=lambda: found.extend(leases))
        taking.start()
        until((tmp_path / "begun").exists)
        dispatch.silent.difference_update(others)
        began = time.monotonic()
        client.sync(_hand_back, client.scheduler, [address])
        took = time.monotonic() - began
        process.kill()
        taking.join(30)
    assert found == [(0, 3)]
    assert len(items.workers[0]) == 1 + hands_in
    assert (items.workers[0][0] == "leaver") is hands_in
    assert dispatch.lost == ({} if hands_in else {"generate": 1})
    assert took < (HAND_IN_SECONDS if hands_in else LEAVE_SECONDS + 1)
    until(lambda: len(offers(client)) == 4)
