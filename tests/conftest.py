"""No test reads or writes the state of whoever runs the suite, and none asks a network for a model."""

import gc
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import pytest
from hypothesis.configuration import set_hypothesis_home_dir

from tests.processes import until

# At once, not in a hook: libraries read these when they are imported, and the conftest files below import them.
STATE = Path(tempfile.mkdtemp(prefix="rlvf-tests-"))
for name in [name for name in os.environ if name.startswith(("PREFECT_", "RLVF_", "MLFLOW_"))]:
    del os.environ[name]
os.environ["RLVF_HOME"] = str(STATE / "home")
os.environ["PREFECT_HOME"] = str(STATE / "prefect")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # beside each other, tests with a thread for every core are 5 times slower
# Of a job in the background, or of nohup; what is started here would ignore them too.
for number, own in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, own)
# not in the work tree; it outlives the session, so that what failed once is tried first the next time
set_hypothesis_home_dir(Path(tempfile.gettempdir(), f"rlvf-hypothesis-{os.getuid()}"))


# A third of what collecting takes would go to looking for garbage among a million objects that stay.
gc.disable()


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, Any, Any]:
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--share", metavar="K/N", help="slow tests: of the files that hold some every N-th, from the K-th on"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Those that take longest first, of which no process is left with one at the end: on machines of their own; then as
    they stand, `flows` before the rest. Of the slow ones a share, if asked for, and `slow(always=True)`."""
    items.sort(key=lambda item: "netns" not in item.path.parts)
    if (share := config.getoption("share")) is None:
        return
    first, every = map(int, share.split("/"))
    files = sorted({item.path for item in items if item.get_closest_marker("slow")})
    there = set(files[first % every :: every])
    marks = ((item, item.get_closest_marker("slow")) for item in items)
    left = [item for item, slow in marks if slow and item.path not in there and not slow.kwargs.get("always")]
    config.hook.pytest_deselected(items=left)
    items[:] = [item for item in items if item not in set(left)]


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """For `--dist loadfile`."""
    from tests.distribution import BesideTheirLab

    return BesideTheirLab(config, log) if config.getvalue("dist") == "loadfile" else None


def pytest_unconfigure() -> None:
    resource_tracker._resource_tracker._stop()  # it would outlive this process for a moment
    shutil.rmtree(STATE, ignore_errors=True)


@pytest.fixture(autouse=True)
def home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """$RLVF_HOME of this test; it does not exist yet."""
    folder = tmp_path / "home"
    monkeypatch.setenv("RLVF_HOME", str(folder))
    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_TRACKING_AUTH"):  # who used a server in this process has set them
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONSAFEPATH", "")
    monkeypatch.delenv(
        "PYTHONSAFEPATH"
    )  # with the line before it: a command in this process sets it for this test alone
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
    from infra.cluster.settings import dask_environment
    from infra.security.tls import tls_environment

    scheme = "tcp" if home is None else "tls"
    address = f"{scheme}://127.0.0.1:{port}"
    command = [sys.executable, "-m", "distributed.cli.dask_scheduler", "--host", "127.0.0.1", "--port", str(port)]
    with log.open("ab") as out:
        process = subprocess.Popen(
            [*command, "--protocol", scheme, "--no-dashboard", "--dashboard-address", "127.0.0.1:0"],
            stdout=out,
            stderr=out,
            env=os.environ | dask_environment() | ({} if home is None else tls_environment(home)) | environment,
        )
    try:

        def is_there() -> bool:
            assert process.poll() is None, log.read_text()
            return f"Scheduler at:     {address}" in log.read_text() and listens(port)

        until(is_there, 30, about=log.read_text)
        yield RunningScheduler(address, log, process)
    finally:
        if process.poll() is None:
            process.terminate()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()
        process.wait()


def listens(port: int) -> bool:
    """Whether somebody listens at the port, on loopback."""
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


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """MLflow's, with all its migrations, which take longer than most tests."""
    from mlflow import MlflowClient

    made = tmp_path_factory.mktemp("empty") / "mlflow.db"
    MlflowClient(f"sqlite:///{made}").search_experiments()
    return made


@pytest.fixture
def mlflow_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """MLflow's own REST handlers on a port, over `home/mlflow.db`; `stop` makes the port refuse, `go` answers on it
    again."""
    import mlflow.server
    from mlflow.server import handlers
    from werkzeug.serving import make_server

    for name in ("MLFLOW_TRACKING_URI", "MLFLOW_REGISTRY_URI"):  # MLflow sets them, and this takes them back
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    monkeypatch.setenv(mlflow.server.BACKEND_STORE_URI_ENV_VAR, f"sqlite:///{tmp_path / 'home' / 'mlflow.db'}")
    monkeypatch.setenv(mlflow.server.ARTIFACT_ROOT_ENV_VAR, "mlflow-artifacts:/")
    monkeypatch.setenv(mlflow.server.ARTIFACTS_DESTINATION_ENV_VAR, str(tmp_path / "served"))
    monkeypatch.setenv(mlflow.server.SERVE_ARTIFACTS_ENV_VAR, "true")
    monkeypatch.setattr(handlers, "_tracking_store", None)
    monkeypatch.setattr(handlers, "_artifact_repo", None)
    logging.getLogger("werkzeug").setLevel(logging.ERROR)

    class Server:
        port = 0

        def go(self) -> None:
            self.http = make_server("127.0.0.1", self.port, mlflow.server.app, threaded=True)
            self.port = self.http.server_port
            self.uri = f"http://127.0.0.1:{self.port}"
            self.thread = threading.Thread(target=self.http.serve_forever, daemon=True)
            self.thread.start()

        def stop(self) -> None:
            self.http.shutdown()
            self.http.server_close()
            self.thread.join()

    server = Server()
    server.go()
    yield server
    server.stop()


@pytest.fixture(scope="session")
def sums() -> list[tuple[str, str]]:
    """Problems that a tiny policy learns within seconds: (expression, text)."""
    return [(f"{a} + {b}", f"add {a} and {b}") for a in range(10) for b in range(10)]


@pytest.fixture(scope="session")
def half_right(sums: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a tiny policy that can solve about half of the sums, most of them now and then."""
    import numpy as np
    import torch

    from rl.learning.learner import Learner
    from rl.learning.optimizer_config import OptimizerConfig
    from rl.learning.supervised import demonstrations, imitate
    from rl.model.policy import Policy, save_policy
    from rl.model.tiny import build_model, build_tokenizer
    from rl.problems.shown import Shown
    from rl.records import Problem

    tokenizer = build_tokenizer()
    model = build_model(len(tokenizer), tokenizer.eos_token_id, tokenizer.pad_token_id, seed=0).eval()
    policy = Policy(model, tokenizer, torch.device("cpu"), torch.float32)
    learner = Learner(policy, OptimizerConfig(lr=4e-3, warmup_steps=5, betas=(0.9, 0.98), microbatch_tokens=1024))
    draws = np.random.default_rng(0)
    while True:
        shown = [Shown.target(Problem(sums[i][1], sums[i][0], "")) for i in draws.integers(len(sums), size=16)]
        if imitate(learner, demonstrations(policy, shown)) <= 0.3:  # nats per token
            break
    folder = tmp_path_factory.mktemp("half-right")
    save_policy(policy, folder)
    return folder
