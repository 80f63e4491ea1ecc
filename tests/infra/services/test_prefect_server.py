"""The shared Prefect server: real processes, real signals."""

import fcntl
import http.server
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import httpx
import pytest

from infra.hosts import free_port
from infra.services import prefect_server as services
from infra.services.http import answers
from infra.services.prefect_server import PrefectServer, prefect_server, server_password
from infra.services.supervisor import ServiceError
from infra.sqlite import DamagedDatabaseError
from tests.processes import started, until

pytestmark = pytest.mark.slow


def nobody_holds(lock: Path) -> bool:
    with lock.open("a") as file, suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False


@pytest.fixture(autouse=True)
def _no_server_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("PREFECT_")]:
        monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Prefect's database with all its migrations, which take longer than all else."""
    home = tmp_path_factory.mktemp("first")
    with pytest.MonkeyPatch.context() as patch:
        for name in [name for name in os.environ if name.startswith("PREFECT_")]:
            patch.delenv(name)
        with prefect_server(home, print) as server:
            server.wait()
    return home / "prefect" / "prefect.db"


@pytest.fixture
def home(tmp_path: Path, database: Path) -> Path:
    """A home in which a server starts quickly."""
    folder = tmp_path / "home" / "prefect"
    folder.mkdir(parents=True)
    shutil.copy(database, folder)
    return folder.parent


def test_flow_runs_that_begin_at_once_wait_for_each_other_in_its_database(home: Path) -> None:
    with prefect_server(home, print) as server:
        api = httpx.Client(base_url=f"{server.wait()}/", auth=("rlvf", server_password(home).partition(":")[2]))
        flow = api.post("flows/", json={"name": "flow"}).json()["id"]

        def begin(_: int) -> int:
            return api.post("flow_runs/", json={"flow_id": flow, "state": {"type": "PENDING"}}, timeout=120).status_code

        with ThreadPoolExecutor(4) as clients:
            assert set(clients.map(begin, range(40))) == {201}
        # a transaction in which another session reads
        assert api.post("work_pools/", json={"name": "pool", "type": "process"}, timeout=60).status_code == 201
        assert api.patch("work_pools/pool/queues/default", json={"is_paused": True}, timeout=30).status_code == 204


USER = """
import select, sys
from pathlib import Path
from infra.services.http import answers
from infra.services.prefect_server import prefect_server

with prefect_server(Path(sys.argv[1]), print) as server:
    try:
        print(server.wait(), flush=True)
        while not select.select([sys.stdin], [], [], 0.1)[0]: pass  # a signal ends no wait that only begins
    except KeyboardInterrupt:
        print("still there" if answers(server.url) else "gone", flush=True)
"""


@contextmanager
def user(home: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that uses the server of `home` until its stdin closes."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    with started(
        *(sys.executable, "-c", USER, home),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=None,
        env=inherited | {"PYTHONPATH": str(Path(services.__file__).parents[2])},
    ) as process:
        yield process


def said(process: subprocess.Popen[str]) -> str:
    """Its next line that is no remark about the port, or a wait: the machine may be busy."""
    assert process.stdout is not None
    line = process.stdout.readline().strip()
    return said(process) if line.startswith(("port ", "waiting ")) else line


def test_it_serves_from_a_free_port_in_the_environment_and_is_gone_afterwards(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remarks: list[str] = []
    before = dict(os.environ)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(services, "PORT", port)
        with prefect_server(home, remarks.append) as server:
            url = server.wait()
            assert os.environ["PREFECT_API_URL"] == url
            assert os.environ["PREFECT_HOME"] == str(home / "prefect")
            assert answers(url)
            begin = time.monotonic()
    assert time.monotonic() - begin < 8
    in_use = [said for said in remarks if not said.startswith("waiting ")]  # as on a busy machine
    assert in_use == [f"port {port} is in use: the Prefect server listens on {url.split(':')[2].split('/')[0]}"]
    assert dict(os.environ) == before
    assert not answers(url)
    assert nobody_holds(home / "prefect" / "server.lock")
    assert not (home / "prefect" / "server.json").exists()


def test_it_outlives_ctrl_c_and_whoever_started_it_but_not_its_last_user(home: Path) -> None:
    with user(home) as first:
        url = said(first)
        with prefect_server(home, print) as server:
            assert server.wait() == url
            os.killpg(first.pid, signal.SIGINT)
            assert said(first) == "still there"
            assert first.wait(90) == 0
            assert answers(url)
            with user(home) as third:
                assert said(third) == url
                server.stop()
                assert answers(url)
                os.kill(third.pid, signal.SIGKILL)
                until(lambda: nobody_holds(home / "prefect" / "server.lock"), 90)
        assert not answers(url)


def test_a_server_whose_supervisor_was_killed_is_still_the_only_one_and_ends(home: Path) -> None:
    with prefect_server(home, print) as server:
        url = server.wait()
        supervisor = json.loads((home / "prefect" / "server.json").read_text())["pid"]
        os.kill(supervisor, signal.SIGKILL)
        with user(home) as other:
            assert said(other) == url
    assert not answers(url)
    assert nobody_holds(home / "prefect" / "server.lock")


def test_a_server_that_does_not_start_says_why(tmp_path: Path) -> None:
    (tmp_path / "prefect").mkdir()
    (tmp_path / "prefect" / "prefect.db").write_text("no database, " * 1000)
    with (
        prefect_server(tmp_path, print) as server,
        pytest.raises(DamagedDatabaseError, match=r"is damaged \(file is not a database\): remove it; Prefect's page"),
    ):
        server.wait()
    assert nobody_holds(tmp_path / "prefect" / "server.lock")


def test_it_can_be_stopped_before_it_is_up(tmp_path: Path) -> None:
    with prefect_server(tmp_path, print):
        begin = time.monotonic()
    assert time.monotonic() - begin < 8
    assert nobody_holds(tmp_path / "prefect" / "server.lock")


def test_the_server_of_the_environment_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Health(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200 if self.path == "/api/health" else 404)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Health) as there:
        thread = threading.Thread(target=there.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{there.server_port}/api"
        monkeypatch.setenv("PREFECT_API_URL", url)
        with prefect_server(tmp_path, print) as server:
            assert server.wait() == url
        assert answers(url)
        there.shutdown()
        thread.join()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match=f"PREFECT_API_URL = '{url}': no Prefect API answers there"):
        PrefectServer(tmp_path, print)
    assert os.environ["PREFECT_API_URL"] == url


def test_a_port_that_is_taken_while_the_server_starts_is_given_up(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    remarks: list[str] = []
    port = free_port(0)
    monkeypatch.setattr(services, "PORT", port)
    with prefect_server(home, remarks.append) as server, prefect_api_of_another(port):
        assert f":{port}/" not in server.wait()
        assert os.environ["PREFECT_API_URL"] == server.url
        assert answers(server.url)
    in_use = [said for said in remarks if not said.startswith("waiting ")]  # as on a busy machine
    assert in_use == [f"port {port} is in use: the Prefect server listens on {server.url.split(':')[2][:-4]}"]


@contextmanager
def prefect_api_of_another(port: int) -> Iterator[None]:
    """Something that answers as a Prefect server with another home does."""

    class Answers(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps({"home": "/another"}).encode() if "settings" in self.path else b"true")

        def log_message(self, *_: object) -> None:
            pass

    api = http.server.ThreadingHTTPServer(("127.0.0.1", port), Answers)
    serving = threading.Thread(target=api.serve_forever)
    serving.start()
    try:
        yield
    finally:
        api.shutdown()
        serving.join()
        api.server_close()


@pytest.mark.parametrize("named", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_no_proxy_is_told_the_password(home: Path, named: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Proxy(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked.append(self.path)
            self.send_error(502)

        def log_message(self, *_: object) -> None: ...

    for name in ("NO_PROXY", "no_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as proxy, prefect_server(home, print) as own:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        for name in ("HTTP_PROXY", "http_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.server_port}")
        own.wait()
        with ExitStack() as stack:
            if named:  # by an environment that says no more than where
                for name in ("NO_PROXY", "no_proxy"):
                    monkeypatch.delenv(name, raising=False)
                stack.enter_context(prefect_server(home, print))
            password = tuple(services.server_password(home).split(":"))
            answer = httpx.get(
                f"{os.environ['PREFECT_API_URL']}/health", auth=password
            )  # Prefect's clients are httpx's
        proxy.shutdown()
    assert (answer.status_code, asked) == (200, [])
    assert "NO_PROXY" not in os.environ


def test_a_damaged_database_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    database = tmp_path / "prefect" / "prefect.db"
    database.parent.mkdir()
    database.write_bytes(b"no database" * 1000)
    with pytest.raises(DamagedDatabaseError) as error, prefect_server(tmp_path, print) as server:
        server.wait()
    assert str(error.value).startswith(f"{database} is damaged (file is not a database): remove it; ")
    assert "\n" not in str(error.value)


def test_a_server_that_takes_too_long_is_said_to_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(services, "START_SECONDS", 0.0)
    with (
        prefect_server(home, print) as server,
        pytest.raises(ServiceError, match="has not answered for 0 s and still runs: this machine is too busy for it"),
    ):
        server.wait()
