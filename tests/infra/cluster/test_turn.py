"""Turns on a real scheduler, taken by clients of their own."""

import threading
from collections.abc import Iterator

import dask.config
import pytest
from distributed import Client, LocalCluster

from infra.cluster import turn as module
from infra.cluster.turn import TurnLostError, training, turn


@pytest.fixture(scope="module")
def scheduler() -> Iterator[str]:
    quick = {"lease-timeout": "3s", "lease-validation-interval": "200ms"}
    with (
        dask.config.set({f"distributed.scheduler.locks.{name}": value for name, value in quick.items()}),
        LocalCluster(n_workers=0, dashboard_address=None, processes=False, protocol="tcp", host="127.0.0.1") as local,
    ):
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


def test_who_slept_through_its_turn_is_refused_and_leaves_the_next_one_its_own(
    scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SURE_SECONDS", 0.0)
    with (
        Client(scheduler, set_as_default=False) as one,
        Client(scheduler, set_as_default=False) as two,
    ):
        sleeping = turn(one, "sleeper", str)
        slept = sleeping.__enter__()
        slept.check()
        slept.lock.refresh_leases = False  # as if its process stood still
        with turn(two, "next", str) as mine:
            with pytest.raises(TurnLostError, match=r"^sleeper gave no sign for so long that next got the cluster"):
                slept.check()
            sleeping.__exit__(None, None, None)
            assert training(two) == "next"
            mine.check()
