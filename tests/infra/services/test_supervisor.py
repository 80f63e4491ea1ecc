"""Services that are kept alive: real processes, real signals."""

import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from infra.hosts import free_port
from infra.services import part as parts
from infra.services import supervisor
from infra.services.http import answers
from infra.services.part import Part
from infra.services.supervisor import BackOff, Found, Program, Service, ServiceError
from tests.processes import until

SLEEPER = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
time.sleep(100)
"""


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    made = Service(tmp_path / "service", tmp_path / "service.log")
    made.hold()
    yield made
    made.release()


def program(service: Service, code: str = SLEEPER, **environment: str) -> Program:
    return Program([sys.executable, "-c", code], environment, service.folder)


def group(service: Service) -> list[psutil.Process]:
    """What a service runs, its supervisor aside, once its two processes are there."""
    until(lambda: service.found().pid)
    return until(lambda: (found := psutil.Process(service.found().pid).children(recursive=True))[1:] and found)


def gone(processes: list[psutil.Process]) -> bool:
    return not [each for each in processes if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]


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
    assert gone(processes)
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
    assert gone(processes)


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


def test_a_part_comes_back_after_its_death_and_is_up_when_it_works(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(BackOff, "FIRST", 0.05)
    works = [False]
    part = Part("mlflow", "here", service, lambda: program(service), lambda: works[0])

    def state() -> str:
        part.poll()
        return part.state

    until(lambda: state() == "starting")
    until(lambda: service.found().pid)
    assert state() == "starting"
    works[0] = True
    until(lambda: state() == "up")
    main, child = group(service)
    os.kill(service.found().pid, signal.SIGKILL)  # the supervisor and the service, but not what that started
    main.kill()
    until(lambda: state() == "died")
    until(lambda: gone([child]))
    until(lambda: state() == "up")
    assert part.stop()
    assert not service.lives()


def test_a_part_that_never_comes_up_says_why(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BackOff, "FIRST", 0.01)
    broken = "raise SystemExit('no database at postgresql://me:planted@host/db')"
    part = Part("mlflow", "here", service, lambda: program(service, broken), lambda: False)
    with pytest.raises(ServiceError, match=r"the MLflow server does not start; .* no database at postgresql://host/db"):
        until(lambda: part.poll())


def test_a_part_waits_for_what_it_needs(service: Service, tmp_path: Path) -> None:
    other = Service(tmp_path / "other", tmp_path / "other.log")
    first = Part("prefect", "here", other, lambda: program(other), lambda: True)
    second = Part("worker", "there", service, lambda: program(service), lambda: True, needs=[first])
    second.poll()
    assert second.state == "waiting"
    assert not service.lives()


SERVER = """
import http.server, sys
class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answers).serve_forever()
"""


def serving(service: Service, port: int) -> Program:
    return Program([sys.executable, "-c", SERVER, str(port)], {}, service.folder)


@pytest.mark.slow
def test_a_service_that_stops_answering_is_seen_and_started_again(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port(0)
    for name, seconds in {"ASK_SECONDS": 0.05, "SILENT_SECONDS": 0.5, "HUNG_SECONDS": 2.0}.items():
        monkeypatch.setattr(parts, name, seconds)
    part = Part(
        "mlflow",
        f"http://127.0.0.1:{port}",
        service,
        lambda: serving(service, port),
        lambda: answers(f"http://127.0.0.1:{port}", timeout=0.2),
    )
    seen: list[str] = []

    def state() -> str:
        part.poll()
        if seen[-1:] != [part.state]:
            seen.append(part.state)
        return part.state

    until(lambda: state() == "up")
    (hung,) = psutil.Process(service.found().pid).children()
    hung.suspend()
    until(lambda: state() == "no answer")
    assert service.lives()
    until(lambda: state() == "up" and not hung.is_running())
    assert seen == ["starting", "up", "no answer", "died", "starting", "up"]


class Clock:
    """Stands for `time`: minutes pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now

    def look(self, *looked: Part, seconds: float = 0.2) -> list[str]:
        """Let the time pass, look at each, and wait for what was asked in a thread."""
        self.now += seconds
        for part in looked:
            part.poll()
        until(lambda: not [each for each in threading.enumerate() if each.name == "does it answer"])
        return [part.state for part in looked]


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(parts, "time", made)
    return made


def test_who_was_stopped_itself_and_goes_on_ends_nothing(service: Service, clock: Clock) -> None:
    """Ctrl-Z and `fg`: nobody has listened for minutes, and a service may take a second to answer then."""
    slow = [False]
    part = Part("prefect", "here", service, lambda: program(service), lambda: not slow[0])
    until(lambda: clock.look(part) == ["up"])
    processes = group(service)
    slow[0] = True
    assert clock.look(part, seconds=10 * parts.HUNG_SECONDS) == ["up"]
    for _ in range(10):
        assert clock.look(part) == ["up"]
    slow[0] = False
    until(lambda: clock.look(part, seconds=1.0) == ["up"])
    assert not gone(processes[:1])
    slow[0] = True
    until(lambda: clock.look(part, seconds=1.0) == ["died"])  # one that really hangs is still seen
    assert gone(processes)


def test_a_server_that_hangs_takes_nobody_along_who_needs_it(service: Service, tmp_path: Path, clock: Clock) -> None:
    """Whether a Prefect worker works is known from Prefect alone, and the runs that it has started end with it."""
    server = Service(tmp_path / "server", tmp_path / "server.log")
    server.hold()
    answers_now = [True]
    prefect = Part("prefect", "here", server, lambda: program(server), lambda: answers_now[0])
    worker = Part("worker", "there", service, lambda: program(service), lambda: answers_now[0], needs=[prefect])
    try:
        until(lambda: clock.look(prefect, worker) == ["up", "up"])
        hung, (own, run) = group(server), group(service)
        answers_now[0] = False
        until(lambda: clock.look(prefect, worker, seconds=1.0)[0] == "died")
        assert gone(hung)
        for _ in range(2 * int(parts.HUNG_SECONDS)):  # it takes its time to come back
            clock.look(prefect, worker, seconds=1.0)
        assert not gone([own])
        assert not gone([run])
        answers_now[0] = True
        until(lambda: clock.look(prefect, worker, seconds=1.0) == ["up", "up"])
        assert not gone([own])
        assert not gone([run])
    finally:
        server.release()


def test_one_whose_port_went_to_another_before_it_worked_goes_elsewhere(service: Service) -> None:
    """Between the look for a free port and the service's own start somebody else may take it."""
    with socket.create_server(("127.0.0.1", 0)) as taker:
        lost = taker.getsockname()[1]
        at = [lost]

        def move() -> str | None:
            if free_port(at[0]) == at[0]:
                return None
            at[0] = free_port(0)
            return f"http://127.0.0.1:{at[0]}"

        part = Part(
            "mlflow",
            f"http://127.0.0.1:{lost}",
            service,
            lambda: serving(service, at[0]),
            lambda: answers(part.address, timeout=0.5),
            move=move,
        )

        def works() -> bool:
            part.poll()
            return part.works

        until(works)
        assert part.address == f"http://127.0.0.1:{at[0]}"
        assert at[0] != lost


def test_the_processes_of_another_machine_are_left_alone(service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    service.start(program(service))
    processes = group(service)
    with monkeypatch.context() as elsewhere:  # the home is on a share
        elsewhere.setattr(supervisor, "boot_name", lambda: "elsewhere")
        assert not service.is_orphan()
        with pytest.raises(ServiceError, match=rf"runs on {socket.gethostname()}: rlvf down there"):
            service.end()
    assert not gone(processes)
