"""Leases on a real cluster whose workers are really killed.

The functions that run on the workers are nested ones, which are sent by value: a worker cannot import this file.
"""

import gc
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from distributed import Client, get_worker

from infra.cluster.placement import PlacementConfig, offers
from infra.dispatch.calls import PoisonedCallError
from infra.dispatch.dispatch import Dispatch
from tests.infra.cluster.processes import dask, die_until
from tests.processes import until


@pytest.mark.slow
def test_a_lease_that_kills_every_worker_is_given_up(dispatch: Dispatch, tmp_path: Path) -> None:
    with pytest.raises(PoisonedCallError, match="verify: 3 workers"):
        list(dispatch.lease("verify", die_until(tmp_path, 99), [(1,)]))
    assert len(list(tmp_path.iterdir())) == 3


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_result_lost_with_its_worker_is_made_again(
    dispatch: Dispatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    class Fatal:
        """The first of these to be fetched ends its worker, which has done its work by then."""

        def __reduce__(self) -> tuple[type[str], tuple[str]]:
            try:
                (tmp_path / "fetched").touch(exist_ok=False)
            except FileExistsError:
                return str, ("fetched",)
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError

    def call(item: int) -> Fatal:
        (tmp_path / f"{item}-{os.getpid()}").touch()
        return Fatal()

    assert sorted(dispatch.lease("generate", call, [(0,), (1,)])) == [(0, "fetched"), (1, "fetched")]
    assert len(list(tmp_path.glob("?-*"))) == 3
    assert dispatch.lost == {"generate": 1}
    gc.collect()  # when asyncio says which exceptions nobody looked at
    assert not [record for record in caplog.records if record.name == "asyncio"]


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(("call", "workers"), [("verify", 1), ("generate", 2)])
def test_batches_share_one_queue_and_no_worker_goes_back(
    dispatch: Dispatch, tmp_path: Path, call: str, workers: int
) -> None:
    """Five steps of three items at staleness 2, as a flow has them: a version when the oldest batch is complete."""
    published = [0]

    class Items(Sequence[tuple[int, int, int]]):
        def __init__(self, step: int) -> None:
            self.step = step

        def __len__(self) -> int:
            return 3

        def __getitem__(self, index: Any) -> Any:
            return self.step, index, published[-1]

    def block() -> None:
        while not (tmp_path / "go").exists():
            time.sleep(0.01)

    def work(step: int, index: int, version: int) -> None:
        with (tmp_path / get_worker().name).open("a") as file:
            file.write(f"{step} {index} {version}\n")

    def collect(step: int) -> None:
        for _ in dispatch.lease(call, work, Items(step), order=(step, 0)):
            pass

    with ThreadPoolExecutor(8) as pool:
        blocked = pool.submit(lambda: list(dispatch.lease(call, block, [()] * workers)))
        until(lambda: len(dispatch.awaited) == workers)
        batches = {step: pool.submit(collect, step) for step in (2, 0, 1)}  # none of them knows of the others
        time.sleep(1)  # a hand-out that would be too much has happened by then
        assert len(dispatch.awaited) == workers
        (tmp_path / "go").touch()
        blocked.result(60)
        for step in range(5):
            batches[step].result(60)
            published.append(step + 1)
            if step + 3 < 5:
                batches[step + 3] = pool.submit(collect, step + 3)
    every = []
    for worker in {span.worker for span in dispatch.timeline.take()}:
        mine = [tuple(map(int, line.split())) for line in (tmp_path / worker).read_text().splitlines()]
        assert [row[:2] for row in mine] == sorted(row[:2] for row in mine)  # by step
        assert [row[2] for row in mine] == sorted(row[2] for row in mine)  # and never back to an older version
        every += mine
    assert sorted(row[:2] for row in every) == [(step, index) for step in range(5) for index in range(3)]
    assert all(version >= step - 2 for step, _, version in every)


@pytest.mark.slow
def test_a_worker_that_stopped_is_not_waited_for(client: Client, tmp_path: Path) -> None:
    def call(item: int) -> str:
        (tmp_path / f"{item}-{get_worker().name}-{os.getpid()}").touch()
        while item == 5 and not (tmp_path / "go").exists():
            time.sleep(0.01)
        return str(get_worker().name)

    def ran() -> list[str]:
        return [mark.name.rpartition("-")[0] for mark in tmp_path.glob("*-generator-*")]

    said: list[str] = []
    until(lambda: len(offers(client)) == 4)

    def say(line: str) -> None:
        if not line.startswith("nothing has come back"):  # which a slow machine may hear as well
            said.append(line)

    with Dispatch(client, PlacementConfig(), say, late_after=600) as dispatch:
        leases = dispatch.lease("generate", call, [(item,) for item in range(6)], order=(1,))
        by = dict(next(leases) for _ in range(5))  # the last one waits, and what the others took was measured
        (held,) = until(lambda: list(tmp_path.glob("5-*")))
        pid = int(held.name.rpartition("-")[2])
        name = held.name[2:].rpartition("-")[0]
        other = "generator-1" if name == "generator-0" else "generator-0"
        os.kill(pid, signal.SIGSTOP)
        try:
            dispatch._queues["generate"]._schedule.lateness.least = 10.0  # not before: the other would have it by now
            stopped = time.monotonic()
            (tmp_path / "go").touch()
            assert next(leases) == (5, other)
            assert time.monotonic() - stopped < 9  # it is not taken for one that is slow
            assert list(leases) == []
            assert len(said) == 1
            assert said[0].startswith(f"{name} has not come back with generate for ")
            assert f"{other} does the same" in said[0]
            # it gets nothing more, neither of this call nor of another
            assert {who for _, who in dispatch.lease("generate", call, [(6,), (7,), (8,)])} == {other}
            assert {who for _, who in dispatch.lease("evaluate", call, [(9,), (10,), (11,)])} == {other}
            assert dispatch.run("generate", call, 12) == other
        finally:
            os.kill(pid, signal.SIGCONT)
        # when it answers it is one like the others, and what it has brought is dropped
        (late,) = (out.future for out in dispatch._queues["generate"]._out.values())
        until(lambda: late.status == "finished")
        both = [who for _, who in dispatch.lease("generate", call, [(item,) for item in range(20, 60)])]
        assert set(both) == {name, other}
        assert said[1:] == [line for line in said[1:] if line.startswith(f"{name} came back with generate after ")]
        assert len(said) == 2
        assert dispatch.lost == Counter()
        spans = dispatch.timeline.take()
    assert Counter(ran())[f"5-{name}"] == Counter(ran())[f"5-{other}"] == 1
    assert len(by) == 5
    assert len([span for span in spans if span.call == "generate"]) == 6 + 1 + 3 + 1 + 40


class Published(Sequence[tuple[int]]):
    """Items that are read when they are handed out, as the policy's newest version is."""

    def __init__(self, newest: int) -> None:
        self.newest = newest
        self.handed: list[int] = []

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: Any) -> Any:
        self.handed.append(self.newest)
        return (self.newest,)


@pytest.mark.slow
def test_the_copy_of_a_late_lease_is_made_of_what_it_was_handed_and_so_is_the_late_one(
    client: Client, tmp_path: Path
) -> None:
    def call(version: int) -> tuple[int, str]:
        name = str(get_worker().name)
        (tmp_path / f"{version}-{name}").touch()
        while version == 7 and not (tmp_path / "go").exists():
            time.sleep(0.01)
        return version, name

    seen: list[Any] = []
    until(lambda: len(offers(client)) == 4)
    with Dispatch(client, PlacementConfig(), late_after=600) as dispatch:
        list(dispatch.lease("generate", call, [(0,)] * 40))  # how long it takes is known from then on
        items = Published(7)
        leases = dispatch.lease("generate", call, items, check=lambda _, back: seen.append(back) or "")
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(next, leases)
            (held,) = until(lambda: list(tmp_path.glob("7-*")))
            items.newest = 8
            dispatch._queues["generate"]._schedule.lateness.least = 0.1
            index, (version, name) = first.result(60)
        assert (index, version) == (0, 8)
        assert held.name != f"7-{name}"
        assert (tmp_path / f"8-{name}").exists()
        (late,) = (out.future for out in dispatch._queues["generate"]._out.values())
        (tmp_path / "go").touch()
        until(lambda: late.status == "finished")
        assert list(leases) == []
    assert items.handed == [7, 8]
    assert seen == [(8, name)]  # what the late one has brought is nobody's


def test_closing_a_lease_takes_back_what_is_under_way(dispatch: Dispatch, tmp_path: Path) -> None:
    def call(item: int) -> int:
        while item > 0 and not (tmp_path / "go").exists():
            time.sleep(0.01)
        return item

    leases = dispatch.lease("verify", call, [(item,) for item in range(50)])
    assert next(leases) == (0, 0)
    (second,) = (out.future for out in dispatch._queues["verify"]._out.values())
    leases.close()  # type: ignore[attr-defined]
    until(lambda: second.status == "cancelled")
    until(lambda: dispatch.awaited == {})
