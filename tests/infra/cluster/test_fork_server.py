"""Workers that are forked: what they share, and what is their own."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from distributed import Client

from infra.cluster import fork_server
from infra.cluster.cluster import cluster
from infra.cluster.cluster_config import ClusterConfig
from tests.processes import until

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks")
SLOW_IMPORT = """
import time, sys
from infra.cluster.fork_server import start_method
print(start_method("CPU", ["slow_to_import"]), flush=True)
"""


@pytest.fixture(autouse=True)
def _as_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever other tests have changed in the environment since."""
    monkeypatch.setattr(fork_server, "_began_with", None)


def gone(_: Path) -> str:
    raise FileNotFoundError("a file of the source that is being replaced")


def parent(pid: int) -> list[str]:
    above = psutil.Process(pid).parent()
    assert above is not None
    return above.cmdline()


@pytest.mark.slow
@linux
def test_a_worker_has_the_imports_of_its_server_and_threads_and_an_environment_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLVF_LATER", "before")
    config = ClusterConfig(threads=3, device="cpu")
    for value in ("before", "after"):
        monkeypatch.setenv("RLVF_LATER", value)
        with cluster(config, log_dir=tmp_path, preload={"TRAINER": ["torch"]}) as client:

            def state() -> tuple[bool, int, str | None, str | None, set[int]]:
                import torch

                blocked = {int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, ())}
                forked = "infra.cluster.forked" in sys.modules
                later, seed = os.environ.get("RLVF_LATER"), os.environ.get("PYTHONHASHSEED")
                return forked, torch.get_num_threads(), later, seed, blocked

            def done(client: Client = client) -> tuple[bool, int, str | None, str | None, set[int]]:
                found: tuple[bool, int, str | None, str | None, set[int]]
                found = client.submit(state, resources={"TRAINER": 1}, pure=False).result()
                return found

            forked, threads, later, seed, blocked = done()
            assert (forked, threads, later, seed) == (True, 3, value, "6640")
            assert {signal.SIGINT, signal.SIGHUP} <= blocked
            pid = client.submit(os.getpid, resources={"TRAINER": 1}, pure=False).result()
            assert any("multiprocessing.forkserver" in word for word in parent(pid))


@pytest.mark.slow
@linux
def test_the_server_has_one_thread_when_it_forks(tmp_path: Path) -> None:
    with cluster(ClusterConfig(device="cpu"), log_dir=tmp_path, preload={"TRAINER": ["torch"]}) as client:
        pid = client.submit(os.getpid, resources={"VERIFIER": 1}, pure=False).result()
        above = psutil.Process(pid).parent()
        assert above is not None
        assert above.num_threads() == 1


@linux
def test_a_worker_is_spawned_where_a_library_has_read_what_has_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fork_server, "_start", lambda _: None)
    monkeypatch.setattr(fork_server, "_is_there", lambda: True)
    assert fork_server.start_method("CUDA", []) == "spawn"
    assert fork_server.start_method("CPU", []) == "forkserver"
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1")  # no worker imports prefect
    assert fork_server.start_method("CPU", []) == "forkserver"
    monkeypatch.setenv("HF_HOME", "/elsewhere")
    assert fork_server.start_method("CPU", []) == "spawn"
    assert fork_server.start_method("MPS", []) == "spawn"
    monkeypatch.undo()
    monkeypatch.setattr(fork_server, "digest_of", gone)
    assert fork_server.start_method("CPU", []) == "spawn"


@linux
def test_without_a_server_workers_are_spawned_and_the_log_says_so(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_: object) -> None:
        raise OSError("AF_UNIX path too long")

    monkeypatch.setattr(fork_server, "_start", refuse)
    assert fork_server.start_method("CPU", []) == "spawn"
    assert "AF_UNIX path too long" in caplog.text


@pytest.mark.slow
@linux
def test_no_server_is_left_of_a_command_that_ends_before_its_imports_do(tmp_path: Path) -> None:
    (tmp_path / "slow_to_import.py").write_text("import time\ntime.sleep(60)\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    command = [sys.executable, "-c", SLOW_IMPORT]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "forkserver\n"
        children = psutil.Process(process.pid).children()
    assert process.returncode == 0
    servers = [each for each in children if "forkserver" in " ".join(each.cmdline() if each.is_running() else [])]
    assert not servers
    until(lambda: not any(each.is_running() and each.status() != psutil.STATUS_ZOMBIE for each in children))
