"""Leases on a real cluster whose workers are really killed.

The functions that run on the workers are nested ones, which are sent by value: a worker cannot import this file.
"""

import gc
import os
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import pytest
from distributed import Client, get_worker

from infra.cluster.calls import PoisonedCallError
from infra.cluster.dispatch import Dispatch
from infra.cluster.placement import PlacementConfig, PlacementError, offers, workers_with
from tests.infra.cluster.processes import dask, die_until
from tests.processes import until


def test_a_lease_that_kills_every_worker_is_given_up(dispatch: Dispatch, tmp_path: Path) -> None:
    with pytest.raises(PoisonedCallError, match="verify: 3 workers"):
        list(dispatch.lease("verify", die_until(tmp_path, 99), [(1,)]))
    assert len(list(tmp_path.iterdir())) == 3


def test_a_worker_killed_in_its_lease_costs_one_lease(dispatch: Dispatch, tmp_path: Path) -> None:
    def call(item: int) -> int:
        if item == 5 and not (tmp_path / "died").exists():
            while not (tmp_path / "go").exists():
                time.sleep(0.01)
            (tmp_path / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return item * item

    got = []
    for each in dispatch.lease("generate", call, [(item,) for item in range(12)]):
        got.append(each)
        if len(got) == 11:  # a result that has not come in yet would be lost with its worker
            (tmp_path / "go").touch()
    assert sorted(got) == [(item, item * item) for item in range(12)]
    assert dispatch.lost == {"generate": 1}
    spans = dispatch.timeline.take()
    assert {span.worker for span in spans} <= {"generator-0", "generator-1"}
    assert [sum(span.lost is lost for span in spans) for lost in (True, False)] == [1, 12]
    assert all(span.start <= span.end for span in spans)


@pytest.mark.parametrize("noticed", [True, False])
def test_a_result_lost_with_its_worker_is_made_again(
    client: Client, dispatch: Dispatch, tmp_path: Path, caplog: pytest.LogCaptureFixture, noticed: bool
) -> None:
    def call(item: int) -> int:
        (tmp_path / f"{item}-{os.getpid()}").touch()
        return item

    leases = dispatch.lease("generate", call, [(0,), (1,)])
    first = next(leases)
    other = 1 - first[0]
    # The other result is finished and nobody has asked for it: it exists on its worker only.
    until(lambda: any(tmp_path.glob(f"{other}-*")))
    until(lambda: [future.status for future in dispatch.under_way] == ["finished"])
    before = set(workers_with(client, ("GENERATOR",)))
    (mark,) = tmp_path.glob(f"{other}-*")
    os.kill(int(mark.name.partition("-")[2]), signal.SIGKILL)
    if noticed:  # before the result is asked for
        until(lambda: set(workers_with(client, ("GENERATOR",))) != before)
    assert sorted([first, *leases]) == [(0, 0), (1, 1)]
    assert len(list(tmp_path.glob(f"{other}-*"))) == 2
    gc.collect()  # when asyncio says which exceptions nobody looked at
    assert not [record for record in caplog.records if record.name == "asyncio"]


def test_a_slow_worker_gets_fewer_leases(dispatch: Dispatch, tmp_path: Path) -> None:
    def call() -> str:
        name: str = get_worker().name
        while name == "generator-0" and not (tmp_path / "go").exists():
            time.sleep(0.01)
        return name

    names = []
    for _, name in dispatch.lease("generate", call, [()] * 10):
        names.append(name)
        if len(names) == 9:
            (tmp_path / "go").touch()
    assert Counter(names) == {"generator-0": 1, "generator-1": 9}


def test_a_worker_that_joins_is_used(client: Client, dispatch: Dispatch, tmp_path: Path) -> None:
    def call() -> str:
        name: str = get_worker().name
        while name != "late" and not (tmp_path / "go").exists():
            (tmp_path / name).touch()
            time.sleep(0.01)
        return name

    names: list[str] = []

    def consume() -> None:
        for _, name in dispatch.lease("generate", call, [()] * 5):
            names.append(name)
            if len(names) == 3:
                (tmp_path / "go").touch()

    consumer = threading.Thread(target=consume)
    consumer.start()
    until(lambda: (tmp_path / "generator-0").exists() and (tmp_path / "generator-1").exists())
    address = client.scheduler.address
    tags = "GENERATOR=1 CPU=1"
    with dask("worker", address, "--name", "late", "--nthreads", "1", "--no-nanny", "--resources", tags):
        consumer.join(60)
        assert not consumer.is_alive()
    assert Counter(names) == {"late": 3, "generator-0": 1, "generator-1": 1}
    until(lambda: len(offers(client)) == 4)


def test_two_batches_share_the_workers_and_the_earlier_goes_first(dispatch: Dispatch, tmp_path: Path) -> None:
    def block() -> None:
        (tmp_path / "started").touch()
        while not (tmp_path / "go").exists():
            time.sleep(0.01)

    def call(batch: str, _: int) -> None:
        with (tmp_path / "order").open("a") as order:
            order.write(batch)

    blocker = dispatch.submit("verify", block)
    until((tmp_path / "started").exists)
    later = threading.Thread(
        target=lambda: list(dispatch.lease("verify", call, [("2", i) for i in range(4)], priority=-2))
    )
    earlier = threading.Thread(
        target=lambda: list(dispatch.lease("verify", call, [("1", i) for i in range(4)], priority=-1))
    )
    later.start()
    until(lambda: len(dispatch.under_way) == 2)
    earlier.start()
    until(lambda: len(dispatch.under_way) == 3)
    until(lambda: sum(map(len, dispatch.client.processing().values())) == 3)
    (tmp_path / "go").touch()
    blocker.result()
    for thread in (later, earlier):
        thread.join(30)
        assert not thread.is_alive()
    order = (tmp_path / "order").read_text()
    assert sorted(order) == sorted("11112222")
    assert order[0] == "1"  # although it was queued after a lease of the later batch


def test_closing_a_lease_takes_back_what_is_under_way(dispatch: Dispatch, tmp_path: Path) -> None:
    def call(item: int) -> int:
        while item > 0 and not (tmp_path / "go").exists():
            time.sleep(0.01)
        return item

    leases = dispatch.lease("verify", call, [(item,) for item in range(50)])
    assert next(leases) == (0, 0)
    (second,) = dispatch.under_way
    leases.close()  # type: ignore[attr-defined]
    until(lambda: second.status == "cancelled")
    assert dispatch.under_way == []


def test_leases_without_a_worker_end_in_words(client: Client) -> None:
    dispatch = Dispatch(client, PlacementConfig(generate=("CUDA", "GENERATOR")), patience=0.1)
    with pytest.raises(PlacementError, match=r"placement.generate needs CUDA and GENERATOR but no worker offers CUDA"):
        list(dispatch.lease("generate", lambda: None, [()]))
