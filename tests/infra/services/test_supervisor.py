"""Services that belong to a folder: real processes, real signals."""

import os
import signal
import socket
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from infra.services import supervisor
from infra.services.supervisor import BackOff, Found, Service, ServiceError
from tests.infra.services.supervised import gone, group, program
from tests.processes import until


def test_it_ends_with_all_that_it_started_when_its_last_user_leaves(service: Service) -> None:
    assert service.start(program(service), "here")
    assert not service.start(program(service), "there")
    processes = group(service)
    assert service.found().url == "here"
    another = Service(service.folder, service.log)
    another.hold()
    assert not service.release()
    assert service.lives()
    assert another.release()
    until(lambda: gone(processes))
    assert not service.lives()
    assert service.found() == Found()


def test_what_stays_of_a_service_that_is_killed_goes_with_it(service: Service) -> None:
    service.start(program(service))
    main, child = group(service)
    main.kill()
    until(lambda: not service.lives())
    until(lambda: gone([main, child]), 90)  # all were killed at once, and the lock is not held by all


def test_one_whose_supervisor_was_killed_is_known_as_an_orphan_and_can_be_ended(service: Service) -> None:
    service.start(program(service))
    processes = group(service)
    assert not service.is_orphan()
    os.kill(service.found().pid, signal.SIGKILL)
    until(service.is_orphan)
    assert service.lives()
    service.end()
    until(lambda: gone(processes))


@pytest.mark.parametrize("lose", [Path.unlink, lambda file: file.write_text("")])
def test_its_file_is_written_again_when_it_is_lost(service: Service, lose: Callable[[Path], object]) -> None:
    service.start(program(service), "here")
    processes, known = group(service), service.found()
    lose(service.folder / "server.json")
    until(lambda: service.found() == known, 10)
    lose(service.folder / "server.json")
    began = time.monotonic()
    assert service.release()
    assert time.monotonic() - began < supervisor.STOP_SECONDS
    until(lambda: gone(processes))


@pytest.mark.slow
def test_one_that_lost_its_file_and_is_stopped_is_ended_by_who_started_it_and_said_by_others(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(supervisor, "STOP_SECONDS", 0.5)
    service.start(program(service))
    processes, pid = group(service), service.found().pid
    os.kill(pid, signal.SIGSTOP)
    (service.folder / "server.json").unlink()
    with ThreadPoolExecutor(1) as pool:
        said = pool.submit(Service(service.folder, service.log).end)
        try:
            with pytest.raises(ServiceError, match=rf"server\.json is lost.* {supervisor.MARK}={service.folder} "):
                said.result(20)
        finally:
            os.kill(pid, signal.SIGKILL if not said.done() else 0)
    assert not gone(processes)
    service.end()
    until(lambda: gone(processes))


def test_an_empty_value_takes_a_variable_away(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TAKEN", "away")
    service.start(
        program(service, "import os; print(os.environ.get('TAKEN'), os.environ['GIVEN'])", TAKEN="", GIVEN="x")
    )
    until(lambda: "None x" in service.log.read_text())


def test_pauses_grow_and_are_short_again_after_a_while() -> None:
    back_off = BackOff()
    pauses = [back_off.pause(ran=1.0) for _ in range(9)]
    assert pauses[:4] == [0.5, 1.0, 2.0, 4.0]
    assert pauses[-1] == BackOff.LONGEST
    assert back_off.pause(ran=BackOff.WHILE) == BackOff.FIRST


def test_the_processes_of_another_machine_are_left_alone(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.start(program(service))
    processes = group(service)
    with monkeypatch.context() as elsewhere:  # the home is on a share
        elsewhere.setattr(supervisor, "boot_name", lambda: "elsewhere")
        assert not service.is_orphan()
        with pytest.raises(ServiceError, match=rf"runs on {socket.gethostname()}: rlvf down there"):
            service.end()
    assert not gone(processes)
