"""Prefect's server dies in mid-run, and somebody else may take its port: the run goes on, and ends in time."""

import http.server
import json
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from flows.run import artifacts, page, prefect_session
from infra.services import prefect_link, supervisor
from tests.processes import until

STEPS = 20


def server(home: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((home / "prefect" / "server.json").read_text())
    return found


def killed(home: Path) -> str:
    """Kill the server with its supervisor; the address at which it was."""
    known = server(home)
    os.killpg(known["pid"], signal.SIGKILL)  # it leads the group
    return str(known["url"])


def asked(home: Path, query: str) -> list[Any]:
    with closing(sqlite3.connect(home / "prefect" / "prefect.db")) as database:
        return database.execute(query).fetchall()


class Stranger(http.server.BaseHTTPRequestHandler):
    """Answers everything, and remembers what it was told."""

    heard: list[str]

    def do_GET(self) -> None:
        self.heard.append(f"{self.command} {self.path} {self.headers.get('Authorization', '')}")
        length = int(self.headers.get("Content-Length", 0))
        self.rfile.read(length)
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def do_POST(self) -> None:
        self.do_GET()

    def do_PATCH(self) -> None:
        self.do_GET()

    def log_message(self, *_: object) -> None:
        pass


class AtOnce(http.server.ThreadingHTTPServer):
    allow_reuse_address = True


@contextmanager
def stranger_at(url: str) -> Iterator[list[str]]:
    """Somebody else's server on that port, from the moment at which it is free; what it is told."""
    heard: list[str] = []
    handler = type("Handler", (Stranger,), {"heard": heard})
    where = urlsplit(url)

    def bound() -> Any:
        try:
            return AtOnce((str(where.hostname), int(where.port or 0)), handler)
        except OSError:
            return None

    there = until(bound, every=0.001)
    serving = threading.Thread(target=there.serve_forever)
    serving.start()
    try:
        yield heard
    finally:
        there.shutdown()
        serving.join()
        there.server_close()


@pytest.mark.slow
def test_a_server_that_dies_is_started_again_and_misses_nothing(lab: Any, tmp_path: Path) -> None:
    home = lab.fresh_home(tmp_path / "home")
    run = home / "runs" / "missed-nothing"
    options = lab.options(run=run.name, steps=str(STEPS), cluster__scheduler=None, cluster__threads="1")
    with lab.command("train", options=options, home=home) as command:
        until(lambda: 2 in lab.metrics(run, "groups/used") or command.process.poll() is not None, seconds=120)
        url = killed(home)
        code, _, err = command.finish(180)
    assert code == 0, err
    assert err.count("the Prefect server has died: it is started again") == 1
    assert "Traceback" not in err
    assert "Prefect missed" not in err
    assert url
    assert asked(home, "select state_type from flow_run where name = 'missed-nothing'") == [("COMPLETED",)]
    updates = (
        "select count(*) from task_run join flow_run on flow_run.id = task_run.flow_run_id where flow_run.name = "
        "'missed-nothing' and task_run.name like 'update %' and task_run.state_type = 'COMPLETED'"
    )
    assert asked(home, updates) == [(STEPS,)]


@pytest.mark.slow
def test_a_stranger_on_its_port_hears_nothing_and_the_end_comes_in_time(lab: Any, tmp_path: Path) -> None:
    home = lab.fresh_home(tmp_path / "home")
    run = home / "runs" / "without-it"
    options = lab.options(run=run.name, steps=str(STEPS))
    with lab.command("train", options=options, home=home) as command:
        until(lambda: 2 in lab.metrics(run, "groups/used") or command.process.poll() is not None, seconds=120)
        with stranger_at(killed(home)) as heard:
            until(
                lambda: STEPS in lab.metrics(run, "eval/pass_at_1") or command.process.poll() is not None, seconds=180
            )
            last = time.monotonic()
            code, out, err = command.finish(180)
            took = time.monotonic() - last
    assert code == 0, err
    assert "pass rate" in out
    assert took < 40  # what the rest of the end takes is in it
    assert "Traceback" not in err
    (line,) = [line for line in err.splitlines() if "Prefect missed" in line]
    assert "events of its tasks and that the run is Completed" in line
    assert not [each for each in heard if not each.startswith("GET ")]
    assert not [each for each in heard if "Basic" in each or "flow_runs" in each]


def test_the_end_of_a_run_waits_half_a_minute_for_prefect_at_most() -> None:
    in_the_flow = page.END_SECONDS + artifacts.END_SECONDS + prefect_session.STATE_SECONDS
    after_it = prefect_session.END_SECONDS + prefect_link.ANSWER_SECONDS
    assert in_the_flow + after_it + supervisor.STOP_SECONDS + supervisor.KILL_SECONDS <= 30


@pytest.mark.slow
def test_a_server_that_hangs_does_not_keep_the_run_from_its_end(lab: Any, tmp_path: Path) -> None:
    home = lab.fresh_home(tmp_path / "home")
    run = home / "runs" / "hung"
    options = lab.options(run=run.name, steps=str(STEPS))
    with lab.command("train", options=options, home=home) as command:
        until(lambda: 2 in lab.metrics(run, "groups/used") or command.process.poll() is not None, seconds=120)
        supervising = server(home)["pid"]
        os.killpg(supervising, signal.SIGSTOP)
        until(lambda: STEPS in lab.metrics(run, "eval/pass_at_1") or command.process.poll() is not None, seconds=180)
        last = time.monotonic()
        code, out, err = command.finish(180)
        took = time.monotonic() - last
        assert supervising not in {each.pid for each in command.alive()}
    assert code == 0, err
    assert "pass rate" in out
    assert took < 60  # half a minute for Prefect, and what the rest of the end takes
    assert "Traceback" not in err
    assert err.count("Prefect missed") == 1
