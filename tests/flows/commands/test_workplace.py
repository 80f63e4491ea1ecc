"""The workplace of a command, where the Prefect server's port is taken while everything starts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
TAKEN = """
import http.server
import threading

import flows.commands.workplace as command
import infra.services.prefect_server as services
from flows.commands.workplace import in_workplace
from flows.run.workplace import open_workplace
from infra.cluster.cluster_config import ClusterConfig
from infra.cluster.placement import PlacementConfig
from infra.hosts import free_port

services.PORT = port = free_port(0)


class Stranger(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        asked.append(self.path)
        self.send_response(401)
        self.end_headers()

    do_POST = do_GET

    def log_message(self, *_):
        pass


def taken(*given):
    # the server was started on the port that was free then, and imports its libraries
    stranger = http.server.ThreadingHTTPServer(("127.0.0.1", port), Stranger)
    threading.Thread(target=stranger.serve_forever, daemon=True).start()
    return open_workplace(*given)


def work(display):
    from prefect import flow
    from prefect.settings import PREFECT_API_URL

    print("at", f":{port}/" not in PREFECT_API_URL.value(), flow(lambda: 42, name="answer")())


asked = []
command.open_workplace = taken
if __name__ == "__main__":
    in_workplace(ClusterConfig(), PlacementConfig(), work)
    print("told", [path for path in asked if "flow" in path])
"""


@pytest.mark.slow
def test_a_flow_finds_a_server_whose_port_was_taken_while_it_started(tmp_path: Path) -> None:
    (tmp_path / "taken.py").write_text(TAKEN)
    env = {"PYTHONPATH": str(ROOT), "RLVF_HOME": str(tmp_path / "home"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, str(tmp_path / "taken.py")],
        env={name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")} | env,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    assert done.stdout.splitlines() == ["at True 42", "told []"], done.stderr
    assert "has died" not in done.stderr
    assert done.stderr.count("is in use: the Prefect server listens on") == 1
