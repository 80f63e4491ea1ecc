"""Turns on a real scheduler, taken by clients of their own."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGSTOP
from typing import Any

import dask.config
import pytest
from distributed import Client, LocalCluster, Scheduler, semaphore

from infra.cluster import training_lock as module
from infra.cluster.settings import DASK_SETTINGS
from infra.cluster.steady import count_by_steady_clock
from infra.cluster.training_lock import TrainingLockLostError, TrainingLocks, training, training_lock
from infra.process_identity import ProcessIdentity
from tests.processes import until


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
        with Client(scheduler, set_as_default=False) as client, training_lock(client, "second", said.append):
            begun.set()

    with Client(scheduler, set_as_default=False) as client:
        with training_lock(client, "first", said.append):
            assert training(client) == "first"
            thread = threading.Thread(target=second)
            thread.start()
            until(lambda: bool(said), 60)
            assert not begun.is_set()
        assert begun.wait(60)
        thread.join()
        assert said == ["waiting: first trains on this cluster"]
        assert training(client) is None


def test_who_does_not_want_its_turn_any_more_waits_no_longer_and_keeps_nobody_from_it(scheduler: str) -> None:
    def unwanted() -> None:
        raise InterruptedError

    with (
        Client(scheduler, set_as_default=False) as one,
        Client(scheduler, set_as_default=False) as two,
    ):
        with training_lock(one, "first", str):
            with pytest.raises(InterruptedError), training_lock(two, "second", str, unwanted):
                pass
            assert training(two) == "first"
        with training_lock(one, "third", str):
            assert training(two) == "third"


@pytest.mark.slow
def test_who_slept_through_its_turn_is_refused_and_leaves_the_next_one_its_own(
    scheduler: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SURE_SECONDS", 0.0)
    with (
        Client(scheduler, set_as_default=False) as one,
        Client(scheduler, set_as_default=False) as two,
    ):
        sleeping = training_lock(one, "sleeper", str)
        slept = sleeping.__enter__()
        slept.check()
        slept.lock.refresh_leases = False  # as if its process stood still
        with training_lock(two, "next", str) as mine:
            with pytest.raises(
                TrainingLockLostError, match=r"^sleeper gave no sign for so long that next got the cluster"
            ):
                slept.check()
            sleeping.__exit__(None, None, None)
            assert training(two) == "next"
            mine.check()


HOLDER = """
import sys, time
from distributed import Client
from infra.cluster.training_lock import training_lock
with Client(sys.argv[1], set_as_default=False) as client, training_lock(client, "killed", print):
    print("holds", flush=True)
    time.sleep(600)
"""


def scheduler_alone() -> LocalCluster:
    return LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0", processes=False, protocol="tcp", host="127.0.0.1")


async def break_off(dask_scheduler: Scheduler, owner: str) -> None:
    """Close the connection of this client."""
    dask_scheduler.client_comms[owner].abort()


@contextmanager
def holder(scheduler: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has the turn."""
    command = [sys.executable, "-c", HOLDER, scheduler]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(module.__file__).parents[2]) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "holds\n"
            yield process
        finally:
            process.kill()


def test_the_turn_of_a_run_that_was_killed_is_taken_at_once_on_its_machine_and_after_a_while_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And not after the 30 s of Dask's."""
    said: list[str] = []
    with (
        scheduler_alone() as local,
        Client(local, set_as_default=False) as client,
    ):
        with holder(local.scheduler_address) as process:
            process.kill()
            process.wait()
            began = time.monotonic()
            with training_lock(client, "another", said.append):
                assert time.monotonic() - began < 5
            assert said == []
        monkeypatch.setattr(module, "ASK_SECONDS", 0.0)
        monkeypatch.setattr(module, "GONE_SECONDS", 3.0)
        monkeypatch.setattr(module, "read_identity", lambda _: ProcessIdentity("another machine", 1, 0.0))
        with holder(local.scheduler_address) as process:
            process.kill()
            began = time.monotonic()
            with training_lock(client, "killed", said.append):  # be it of the same name
                assert 3 < time.monotonic() - began < 15
            assert said == ["waiting: killed trains on this cluster"]
        with training_lock(client, "the next", said.append):  # it is free
            pass


def connects_again_once(ended: threading.Event, client: Any) -> None:
    """Have the client do so no sooner: it takes a millisecond."""
    reconnect = client._reconnect

    async def later() -> None:
        client.status, comm, client.scheduler_comm = "connecting", client.scheduler_comm, None
        while not ended.is_set():
            await asyncio.sleep(0.01)
        client.scheduler_comm = comm
        await reconnect()

    client._reconnect = later


def test_a_run_whose_connection_broke_has_its_own_turn_again_at_once() -> None:
    said: list[str] = []
    ended = threading.Event()

    with (
        scheduler_alone() as local,
        Client(local, set_as_default=False) as other,
        Client(local, set_as_default=False) as broken,
    ):
        locks = TrainingLocks()
        with suppress(KeyError), locks.held(broken, "mine", said.append):
            connects_again_once(ended, broken)
            other.run_on_scheduler(break_off, owner=broken.id)
            until(lambda: broken.status != "running", 10)
            raise KeyError
        ended.set()
        with Client(local, set_as_default=False) as renewed:
            began = time.monotonic()
            with locks.held(renewed, "mine", said.append):
                assert time.monotonic() - began < 5
                assert training(other) == "mine"
        assert said == []
        with training_lock(other, "the next", said.append):  # it is free
            pass


def test_whoever_stands_still_or_is_back_on_its_connection_keeps_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until Dask lets go of it, after the 30 s that nobody waits for here."""
    monkeypatch.setattr(module, "ASK_SECONDS", 0.0)
    monkeypatch.setattr(module, "GONE_SECONDS", 2.0)

    class EnoughError(Exception):
        pass

    def enough() -> None:
        if time.monotonic() > until_then:
            raise EnoughError

    with (
        scheduler_alone() as local,
        Client(local, set_as_default=False) as one,
        Client(local, set_as_default=False) as two,
    ):
        with holder(local.scheduler_address) as process:
            process.send_signal(SIGSTOP)
            until_then = time.monotonic() + 5
            with pytest.raises(EnoughError), training_lock(two, "killed", str, enough):
                pass
        with training_lock(one, "mine", str) as mine:
            one.run_on_scheduler(break_off, owner=one.id)
            until_then = time.monotonic() + 5
            with pytest.raises(EnoughError), training_lock(two, "another", str, enough):
                pass
            until(lambda: one.status == "running", 10)
            connections = [event for _, event in two.get_events(one.id) if event["action"].endswith("-client")]
            assert [event["action"] for event in connections] == ["add-client", "remove-client", "add-client"]
            mine.check()


def test_what_is_within_a_turn_has_that_one_and_leaves_it_as_it_is(scheduler: str) -> None:
    locks = TrainingLocks()
    with Client(scheduler, set_as_default=False) as client, Client(scheduler, set_as_default=False) as other:
        with locks.held(client, "a run", str) as outer:
            with locks.held(client, "its warm-up", str) as inner:
                assert inner is outer
            assert training(other) == "a run"
            inner.check()
            with pytest.raises(KeyError), locks.held(client, "its warm-up", str):
                raise KeyError
            assert training(other) == "a run"
        assert training(other) is None
        with training_lock(other, "the next", str):  # it is free
            pass


def test_a_clock_that_is_set_takes_the_turn_from_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    jumps = [0.0]
    monkeypatch.setattr(semaphore, "time", lambda: time.time() + jumps[0])
    count_by_steady_clock()
    settings = {**DASK_SETTINGS, "distributed.scheduler.locks.lease-validation-interval": "1000s"}  # below, by hand
    with (
        dask.config.set(settings),
        LocalCluster(n_workers=0, dashboard_address="127.0.0.1:0", processes=False, protocol="tcp") as local,
        Client(local, set_as_default=False) as client,
        training_lock(client, "first", str) as mine,
    ):
        mine.lock.refresh_leases = False  # nor does it give a sign just now
        for jump in (3600.0, -3600.0):
            jumps[0] = jump

            async def look(dask_scheduler: Scheduler) -> None:
                dask_scheduler.extensions["semaphores"]._check_lease_timeout()

            client.run_on_scheduler(look)
            assert mine.lock.locked()
