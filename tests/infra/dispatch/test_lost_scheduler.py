"""The scheduler is killed, and perhaps started again: what it knew is gone, so that calls end instead of going on."""

import threading
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from infra.cluster.cluster import cluster
from infra.cluster.cluster_config import ClusterConfig
from infra.cluster.placement import PlacementConfig, offers
from infra.dispatch.calls import SchedulerLostError
from infra.dispatch.dispatch import Dispatch
from tests.conftest import free_port, running_scheduler
from tests.infra.cluster.processes import dask
from tests.processes import until

pytestmark = pytest.mark.slow


def worker(scheduler: Any) -> AbstractContextManager[Any]:
    return dask("worker", scheduler.address, "--nthreads", "1", "--no-nanny", "--resources", "TRAINER=1")


def test_a_lost_scheduler_ends_every_call(tmp_path: Path) -> None:
    def call() -> None:
        (tmp_path / "started").touch()
        while (tmp_path / "started").exists():
            time.sleep(0.05)

    with (
        running_scheduler(tmp_path / "log", None, free_port()) as scheduler,
        worker(scheduler),
        cluster(ClusterConfig(scheduler=scheduler.address)) as client,
    ):
        until(lambda: offers(client))
        killer = threading.Thread(target=lambda: (until((tmp_path / "started").exists), scheduler.process.kill()))
        killer.start()
        with Dispatch(client, PlacementConfig()) as dispatch, pytest.raises(SchedulerLostError):
            dispatch.run("train", call)
        killer.join()
    (tmp_path / "started").unlink()


def test_no_call_goes_to_a_scheduler_that_is_back_between_two(tmp_path: Path) -> None:
    port = free_port()
    with (
        running_scheduler(tmp_path / "first", None, port) as first,
        worker(first),
        cluster(ClusterConfig(scheduler=first.address)) as client,
        Dispatch(client, PlacementConfig()) as dispatch,
    ):
        assert dispatch.run("train", abs, -1) == 1
        before = client.scheduler_comm
        first.process.kill()
        first.process.wait()
        with running_scheduler(tmp_path / "second", None, port) as second, worker(second):
            until(lambda: client.status == "running" and client.scheduler_comm is not before)
            until(lambda: offers(client))
            for lost in (dispatch, dispatch.renewed()):
                for call in ("train", "generate"):
                    with pytest.raises(SchedulerLostError, match="connection to the Dask scheduler was lost"):
                        lost.run(call, abs, -1)
                with pytest.raises(SchedulerLostError):
                    lost.submit("train", abs, -1)
            with cluster(ClusterConfig(scheduler=second.address)) as again, dispatch.renewed(again) as renewed:
                assert renewed.run("train", abs, -1) == 1
