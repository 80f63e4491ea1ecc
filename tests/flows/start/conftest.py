"""A Hugging Face hub on this machine."""

import http.server
import json
import threading
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.flows.start.model_hub import Hub, use_hub
from tests.flows.start.site import Site, serving


@pytest.fixture
def elsewhere() -> str:
    """The URI of a run that lies outside of the home."""
    return f"memory://{uuid.uuid4().hex}/run"


@pytest.fixture
def site() -> Iterator[Site]:
    with serving() as site:
        yield site


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    """This process and what it starts ask this one, and have nothing of it in their cache."""

    knows = Hub()

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if knows.silent.is_set():
                knows.over.wait()
                return
            model = self.path.partition("?")[0].removeprefix("/api/models/")
            if self.path.startswith("/api/models/"):
                knows.asked.append(model)
            unknown = (401, {"X-Error-Code": "RepoNotFound"}, {"error": "Invalid username or password."})
            status, headers, content = knows.answers.get(model, unknown)
            body = json.dumps(content).encode()
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    use_hub(monkeypatch, f"http://127.0.0.1:{server.server_port}", tmp_path / "cache")
    yield knows
    knows.over.set()
    server.shutdown()
    server.server_close()
