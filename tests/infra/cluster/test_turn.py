"""Turns on a real scheduler, taken by clients of their own."""

import threading
from collections.abc import Iterator

import pytest
from distributed import Client, LocalCluster

from infra.cluster.turn import training, turn


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    with LocalCluster(n_workers=0, dashboard_address=None, processes=False, protocol="tcp", host="127.0.0.1") as local:
        yield local.scheduler_address


def test_a_second_run_waits_says_for_whom_and_is_next(scheduler: str) -> None:
    said: list[str] = []
    begun = threading.Event()

    def second() -> None:
        with Client(scheduler, set_as_default=False) as client, turn(client, "second", said.append):
            begun.set()

    with Client(scheduler, set_as_default=False) as client:
        with turn(client, "first", said.append):
            assert training(client) == "first"
            thread = threading.Thread(target=second)
            thread.start()
            assert not begun.wait(1.5)
        assert begun.wait(10)
        thread.join()
        assert said == ["waiting: first trains on this cluster"]
        assert training(client) is None
