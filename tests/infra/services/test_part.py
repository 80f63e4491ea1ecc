"""Services that are kept alive: real processes, real signals."""

import os
import signal
import socket
import sys
import threading
from pathlib import Path

import psutil
import pytest

from infra.hosts import free_port
from infra.services import part as parts
from infra.services.http import answers
from infra.services.part import Part
from infra.services.supervisor import BackOff, Program, Service, ServiceError
from tests.infra.services.supervised import gone, group, program
from tests.processes import until


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


@pytest.mark.slow
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


@pytest.mark.slow
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


@pytest.mark.slow
def test_a_successor_that_hangs_before_it_has_answered_is_started_again_too(service: Service, clock: Clock) -> None:
    works = [True]
    part = Part("mlflow", "here", service, lambda: program(service), lambda: works[0])
    until(lambda: clock.look(part) == ["up"])
    works[0] = False
    until(lambda: clock.look(part, seconds=1.0) == ["died"])
    until(lambda: clock.look(part, seconds=1.0) == ["starting"])
    second, began = group(service), clock.now
    until(lambda: clock.look(part, seconds=1.0) == ["died"])
    assert clock.now - began == pytest.approx(parts.START_SECONDS, abs=5)
    assert gone(second)
    works[0] = True
    until(lambda: clock.look(part, seconds=1.0) == ["up"])


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
