"""No test reads or writes the state of whoever runs the suite, and none asks a network for a model."""

import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path

import pytest
from hypothesis.configuration import set_hypothesis_home_dir

# At once, not in a hook: libraries read these when they are imported, and the conftest files below import them.
STATE = Path(tempfile.mkdtemp(prefix="rlvf-tests-"))
for name in [name for name in os.environ if name.startswith(("PREFECT_", "RLVF_", "MLFLOW_"))]:
    del os.environ[name]
os.environ["RLVF_HOME"] = str(STATE / "home")
os.environ["PREFECT_HOME"] = str(STATE / "prefect")
os.environ["HF_HUB_OFFLINE"] = "1"
# not in the work tree; it outlives the session, so that what failed once is tried first the next time
set_hypothesis_home_dir(Path(tempfile.gettempdir(), f"rlvf-hypothesis-{os.getuid()}"))


def pytest_unconfigure() -> None:
    resource_tracker._resource_tracker._stop()  # it would outlive this process for a moment
    shutil.rmtree(STATE, ignore_errors=True)


@pytest.fixture(autouse=True)
def home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """$RLVF_HOME of this test; it does not exist yet."""
    folder = tmp_path / "home"
    monkeypatch.setenv("RLVF_HOME", str(folder))
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)  # a server of MLflow's in this process has set it
    return folder


@dataclass(frozen=True)
class RunningScheduler:
    """A `dask scheduler` in a process of its own."""

    address: str
    log: Path
    process: subprocess.Popen[bytes]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running_scheduler(log: Path, home: Path | None, port: int, **environment: str) -> Iterator[RunningScheduler]:
    """With the certificates of `home`, or without TLS; log lines of an earlier one stay."""
    from infra.cluster import scheduler_environment
    from infra.security import tls_environment

    scheme = "tcp" if home is None else "tls"
    address = f"{scheme}://127.0.0.1:{port}"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port)]
    with log.open("ab") as out:
        process = subprocess.Popen(
            [*command, "--protocol", scheme, "--no-dashboard", "--dashboard-address", "127.0.0.1:0"],
            stdout=out,
            stderr=out,
            env=os.environ | scheduler_environment() | ({} if home is None else tls_environment(home)) | environment,
        )
    try:
        deadline = time.monotonic() + 30
        while log.read_text().count(f"Scheduler at:     {address}") < 1 or not _listens(port):
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield RunningScheduler(address, log, process)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


StartScheduler = Callable[..., RunningScheduler]


@pytest.fixture(scope="module")
def start_scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StartScheduler]:
    """Starts schedulers: `start_scheduler(home=None, port=None, **environment)`; they end with the module."""
    folder = tmp_path_factory.mktemp("schedulers")
    with ExitStack() as stack:

        def start(home: Path | None = None, port: int | None = None, **environment: str) -> RunningScheduler:
            port = port or free_port()
            return stack.enter_context(running_scheduler(folder / f"{port}.log", home, port, **environment))

        yield start
