"""Calls that only one worker may run at a time, where that one stops or is gone and another one could."""

import os
import signal
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from distributed import Client, get_worker

from infra.cluster.placement import PlacementConfig, offers
from infra.dispatch.calls import TakeoverError
from infra.dispatch.dispatch import Dispatch
from tests.infra.cluster.processes import dask
from tests.processes import until

pytestmark = pytest.mark.slow

ROLES = ("--nthreads", "1", "--no-dashboard", "--no-nanny", "--resources", "TRAINER=1 CPU=1")


@pytest.fixture
def spare(client: Client) -> Iterator[str]:
    """A second trainer, which nobody starts again; gives its name."""
    until(lambda: len(offers(client)) == 4)
    assert client.scheduler is not None
    with dask("worker", client.scheduler.address, "--name", "spare", *ROLES):
        until(lambda: len(offers(client)) == 5)
        yield "spare"
    until(lambda: len(offers(client)) == 4)


def waits_for(folder: Path) -> Callable[[str], tuple[str, int]]:
    """A call that says who it is, and with a name waits for a file of it."""

    def call(name: str) -> tuple[str, int]:
        (folder / f"{name}-on-{get_worker().name}").touch()
        while name and not (folder / name).exists():
            time.sleep(0.01)
        return str(get_worker().name), os.getpid()

    return call


def test_calls_stay_where_they_are_until_their_worker_stops_and_then_somebody_has_to_agree(
    client: Client, spare: str, tmp_path: Path
) -> None:
    call = waits_for(tmp_path)
    with Dispatch(client, PlacementConfig(), late_after=6.0) as dispatch, ThreadPoolExecutor(1) as pool:
        ((first, pid),) = {dispatch.run("train", call, "") for _ in range(8)}
        held = pool.submit(dispatch.run, "train", call, "go")
        until(lambda: (tmp_path / f"go-on-{first}").exists())
        time.sleep(8)  # long: but it gives signs of life
        assert not held.done()
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(TakeoverError, match=rf"^train: {first} has given no sign of life for \d+ s$"):
                held.result(120)
            with dispatch.renewed() as again:
                other = {"trainer": spare, spare: "trainer"}[first]
                assert {again.run("train", call, "")[0] for _ in range(3)} == {other}
                assert len(again.silent) == 1
                (tmp_path / "go").touch()
                os.kill(pid, signal.SIGCONT)
                until(lambda: not again.silent)  # it has answered, and nobody was told what
        finally:
            os.kill(pid, signal.SIGCONT)
            (tmp_path / "go").touch()
        assert again.lost == {}


def test_a_worker_that_is_gone_is_not_simply_replaced_by_another_one(
    client: Client, spare: str, tmp_path: Path
) -> None:
    call = waits_for(tmp_path)
    with Dispatch(client, PlacementConfig()) as dispatch, ThreadPoolExecutor(1) as pool:
        first, pid = dispatch.run("train", call, "")
        held = pool.submit(dispatch.run, "train", call, "never")
        until(lambda: (tmp_path / f"never-on-{first}").exists())
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(TakeoverError, match=rf"^train: {first} is gone$"):
            held.result(60)
        with dispatch.renewed() as again:
            assert again.run("train", call, "")[0] in ("trainer", spare)
            assert again.lost == {"train": 1}
