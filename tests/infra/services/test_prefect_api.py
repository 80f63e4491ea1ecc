"""What Prefect's API answers to processes that do not import prefect."""

import threading
import time
import urllib.error
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from infra.services import prefect_api
from infra.services.prefect_api import PrefectApi, resumed_by


@contextmanager
def server(*statuses: int) -> Iterator[PrefectApi]:
    """Answers with one status after the other, the last one for ever."""
    left = list(statuses)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status)
            self.end_headers()
            self.wfile.write(b'{"left": %d}' % len(left))

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as serving:
        thread = threading.Thread(target=serving.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield PrefectApi(f"http://127.0.0.1:{serving.server_port}/api")
        finally:
            serving.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("parameters", "by"),
    [
        ({"config": {"run": "s3://mine/my run"}}, "s3://mine/my run"),
        ({"config": {}, "resume": "/mnt/my run"}, "/mnt/my run"),
        ({"config": {"run": "shared"}}, "my run"),
        ({"config": None}, "my run"),
        ({}, "my run"),
        (None, "my run"),
    ],
)
def test_a_run_that_lies_elsewhere_is_resumed_by_its_uri(parameters: dict[str, Any] | None, by: str) -> None:
    assert resumed_by({"name": "my run", "parameters": parameters}) == by


def test_a_server_whose_database_was_busy_is_asked_again() -> None:
    with server(503, 503, 200) as api:
        assert api.ask("flow_runs/1") == {"left": 1}


def test_one_that_stays_busy_is_an_error_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefect_api, "BUSY_SECONDS", 0.5)
    began = time.monotonic()
    with server(503) as api, pytest.raises(urllib.error.HTTPError, match="503"):
        api.ask("flow_runs/1")
    assert 0.5 < time.monotonic() - began < 60


def test_other_errors_come_at_once() -> None:
    with server(500, 200) as api, pytest.raises(urllib.error.HTTPError, match="500"):
        api.ask("flow_runs/1")
