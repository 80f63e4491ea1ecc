"""A Prefect server that stops without dying is ended and started again, by whom it belongs to."""

import os
import signal
import sys
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from infra.services import prefect_link, prefect_server
from infra.services.prefect_link import kept_alive
from infra.services.prefect_server import PrefectServer
from infra.services.supervisor import Program
from tests.processes import until

pytestmark = pytest.mark.slow

ANSWERS = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


class Small(PrefectServer):
    """In the place of Prefect's, which takes long to start."""

    def program(self) -> Program:
        return Program([sys.executable, "-c", ANSWERS, str(urlsplit(self.url).port)], {}, self.service.folder)


def answers(home: Path, url: str, seconds: float) -> bool:  # noqa: ARG001 - as `is_of`
    try:
        with urllib.request.urlopen(url, timeout=seconds):
            return True
    except OSError:
        return False


@pytest.fixture
def small(home_folder: Path, monkeypatch: pytest.MonkeyPatch) -> PrefectServer:
    for name, seconds in (("POLL_SECONDS", 0.05), ("ASK_SECONDS", 0.05), ("HUNG_SECONDS", 1.0)):
        monkeypatch.setattr(prefect_link, name, seconds)
    monkeypatch.setattr(prefect_link, "ANSWER_SECONDS", 0.5)
    monkeypatch.setattr(prefect_link, "is_of", answers)
    return Small(home_folder, lambda _: None, port=0)


def test_a_server_that_hangs_is_ended_and_started_again_where_it_was(small: PrefectServer) -> None:
    said: list[str] = []
    try:
        with kept_alive(small, said.append):
            until(lambda: answers(small.home, small.url, 5.0))
            before = small.service.found()
            os.killpg(before.pid, signal.SIGSTOP)
            until(lambda: small.service.found().pid not in (None, before.pid))
            until(lambda: answers(small.home, small.url, 5.0))
            assert small.service.found().url == before.url
    finally:
        small.stop()
    assert said[0] == "the Prefect server has not answered for 1 s: it is started again, and told what it has missed"


def test_a_command_that_meets_a_server_that_hangs_starts_it_again(
    small: PrefectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefect_server, "is_of", answers)
    monkeypatch.setattr(prefect_server, "SAY_SECONDS", 0.2)
    said: list[str] = []
    other = Small(small.home, said.append, port=0)
    try:
        url = small.wait()
        before = small.service.found()
        os.killpg(before.pid, signal.SIGSTOP)
        assert other.wait(timeout=3.0) == url
        assert other.service.found().pid != before.pid
        assert answers(small.home, url, 5.0)
    finally:
        other.stop()
        small.stop()
    waits = f"waiting for the Prefect server at {url}"
    assert said == [waits, "the Prefect server has not answered for 3 s: it is started again"]


def test_the_homes_own_server_is_waited_for_where_the_environment_names_it(
    small: PrefectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefect_server, "answers", lambda url: answers(small.home, url, 0.5))
    monkeypatch.setattr(prefect_server, "is_of", answers)
    said: list[str] = []
    try:
        url = small.wait()
        monkeypatch.setenv("PREFECT_API_URL", url)
        monkeypatch.setenv("PREFECT_HOME", str(small.service.folder))  # as `rlvf status --shell` prints them
        before = small.service.found()
        os.killpg(before.pid, signal.SIGSTOP)
        with ThreadPoolExecutor() as pool:
            command = pool.submit(PrefectServer, small.home, said.append)
            until(lambda: bool(said) or command.done())
            os.killpg(before.pid, signal.SIGCONT)
            assert command.result().url == url
        small.stop()
        with pytest.raises(ValueError, match="no Prefect API answers there"):
            PrefectServer(small.home, said.append)
    finally:
        small.stop()
    assert said == [f"waiting for the Prefect server at {url}, which is started again"] * 2


def test_a_server_that_hangs_is_left_to_whoever_keeps_its_port(
    small: PrefectServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(small, "is_kept_elsewhere", lambda: True)
    asked: list[bool] = []

    def unanswered(home: Path, url: str, seconds: float) -> bool:  # noqa: ARG001
        asked.append(len(asked) == 0)  # once
        return asked[-1]

    monkeypatch.setattr(prefect_link, "is_of", unanswered)
    monkeypatch.setattr(prefect_link, "HUNG_SECONDS", 0.2)
    said: list[str] = []
    try:
        with kept_alive(small, said.append):
            until(lambda: len(asked) > 20)
        assert small.service.lives()
    finally:
        small.stop()
    assert said == []
