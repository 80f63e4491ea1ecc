"""The local cluster: real processes, real signals."""

import gc
import importlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client, Security, SpecCluster, get_worker

from infra.cluster import cluster as module
from infra.cluster.cluster import ClusterError, check_scheduler, cluster, local_cluster, workers
from infra.cluster.cluster_config import ClusterConfig
from infra.cluster.machine import cores
from infra.cluster.placement import PlacementConfig, check_placement, offers, workers_with
from infra.cluster.settings import DEVICE_PROCESSES
from infra.security.identity import certs_folder
from tests.processes import started, until

pytestmark = pytest.mark.slow

WARM = "wave"  # a module that nothing else imports


def gone(process: psutil.Process) -> bool:
    return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("logs")


@pytest.fixture(scope="module")
def client(logs: Path) -> Iterator[Client]:
    config = ClusterConfig(threads=3, device="cpu")
    with cluster(config, log_dir=logs, preload={"VERIFIER": [WARM]}) as client:
        yield client


def pid_of(client: Client, name: str) -> int:
    (address,) = [offer.address for offer in offers(client) if offer.name == name]
    return int(client.run(os.getpid, workers=[address])[address])


def test_every_role_has_its_tags_and_the_default_placement_is_satisfied(client: Client) -> None:
    assert {offer.name: dict(offer.resources) for offer in offers(client)} == {
        "trainer": {"CPU": 1, "TRAINER": 1},
        "generator-0": {"CPU": 1, "GENERATOR": 1},
        "verifier-0": {"CPU": 1, "VERIFIER": 1},
    }
    check_placement(client, PlacementConfig())


def test_threads_are_set_before_the_first_call(client: Client) -> None:
    def threads() -> list[str | None]:
        return [os.environ.get(name) for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "TOKENIZERS_PARALLELISM")]

    assert client.submit(threads, resources={"TRAINER": 1}, pure=False).result() == ["3", "passive", "false"]
    assert client.submit(threads, resources={"VERIFIER": 1}, pure=False).result() == ["1", "passive", "false"]


def test_no_worker_asks_for_the_frames_of_its_threads_where_that_can_stop_it_for_ever(client: Client) -> None:
    profiled = client.run(lambda dask_worker: "profile" in dask_worker.periodic_callbacks)
    assert set(profiled.values()) == {sys.version_info >= (3, 12)}


def test_a_killed_worker_comes_back_under_its_name_with_its_tags_and_warm(client: Client) -> None:
    def state() -> tuple[str, bool]:
        return get_worker().name, WARM in sys.modules

    assert client.submit(state, resources={"VERIFIER": 1}, pure=False).result() == ("verifier-0", True)
    killed, (address,) = pid_of(client, "verifier-0"), workers_with(client, ("CPU", "VERIFIER"))
    os.kill(killed, signal.SIGKILL)
    until(lambda: address not in (there := workers_with(client, ("CPU", "VERIFIER"))) and there)
    assert client.submit(state, resources={"VERIFIER": 1}, pure=False).result() == ("verifier-0", True)
    assert pid_of(client, "verifier-0") != killed


def test_a_worker_looks_for_garbage_but_not_among_what_it_imported_first(client: Client) -> None:
    def state() -> tuple[bool, bool]:
        return gc.isenabled(), gc.get_freeze_count() > 10_000

    assert client.submit(state, resources={"VERIFIER": 1}, pure=False).result() == (True, True)


def test_what_a_worker_prints_is_in_its_file(client: Client, logs: Path, capfd: pytest.CaptureFixture[str]) -> None:
    def shout() -> None:
        os.write(2, b"a native library speaks\n")

    client.submit(shout, resources={"GENERATOR": 1}, pure=False).result()
    assert "a native library speaks" in (logs / "generator-0.log").read_text()
    assert capfd.readouterr() == ("", "")


def test_a_cluster_can_be_joined_and_left(client: Client, home_folder: Path) -> None:
    its, here = client.security, certs_folder(home_folder)
    here.mkdir(parents=True)
    for name, pem in (
        ("authority.pem", its.tls_ca_file),
        ("machine.pem", its.tls_client_cert),
        ("machine.key", its.tls_client_key),
    ):
        (here / name).write_text(pem)
    with cluster(ClusterConfig(scheduler=client.scheduler.address)) as joined:
        assert {offer.name for offer in offers(joined)} == {offer.name for offer in offers(client)}
    assert offers(client)


def test_a_scheduler_that_does_not_answer_is_named() -> None:
    with (
        pytest.raises(ClusterError, match=r"cluster.scheduler = 'tcp://127.0.0.1:9' does not answer"),
        cluster(ClusterConfig(scheduler="tcp://127.0.0.1:9"), patience=0.5),
    ):
        pass


def test_a_scheduler_whose_port_opens_meanwhile_is_not_refused() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        opens = threading.Timer(0.6, one.listen)
        opens.start()
        check_scheduler(ClusterConfig(scheduler=f"tcp://127.0.0.1:{one.getsockname()[1]}"))
        opens.join()


def test_a_busy_cluster_ends_within_seconds_and_leaves_nothing(tmp_path: Path) -> None:
    def work(started: Path) -> None:
        started.touch()
        while True:
            time.sleep(0.1)

    before = dict(os.environ)
    with cluster(ClusterConfig(verifiers=0), log_dir=tmp_path) as client:
        busy = client.submit(work, tmp_path / "started", resources={"GENERATOR": 1}, pure=False)
        until((tmp_path / "started").exists)
        processes = [psutil.Process(pid) for pid in client.run(os.getpid).values()]
        begin = time.monotonic()
    assert time.monotonic() - begin < 8
    assert len(processes) == 2
    assert all(map(gone, processes))
    assert busy.status != "finished"
    assert dict(os.environ) == before


def test_an_interrupt_while_the_client_is_made_leaves_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    made: list[Client] = []

    def slow(*given: Any, **options: Any) -> Client:
        made.append(Client(*given, **options))  # type: ignore[no-untyped-call]
        signal.raise_signal(signal.SIGINT)
        return made[0]

    monkeypatch.setattr(module, "Client", slow)
    with pytest.raises(KeyboardInterrupt), cluster(ClusterConfig(verifiers=0), log_dir=tmp_path):
        pass
    assert [client.status for client in made] == ["closed"]


def test_workers_that_are_slow_to_end_cost_a_line_and_not_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    close = SpecCluster.close

    def slow(local: SpecCluster) -> None:
        close(local)  # type: ignore[no-untyped-call]
        raise TimeoutError

    monkeypatch.setattr(SpecCluster, "close", slow)
    with cluster(ClusterConfig(verifiers=0), log_dir=tmp_path):
        pass
    assert "could not be closed in time" in (tmp_path / "dask.log").read_text()


FLOW = """
import sys
import time
from pathlib import Path
from infra.cluster.cluster import cluster
from infra.cluster.cluster_config import ClusterConfig

if __name__ == "__main__":
    with cluster(ClusterConfig(verifiers=0), log_dir=Path(sys.argv[1])) as client:
        print("up", flush=True)
        while True:
            time.sleep(0.1)  # a signal that comes as a longer wait begins is seen when that ends
"""


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGKILL])
def test_no_worker_outlives_its_flow_or_complains(tmp_path: Path, signum: signal.Signals) -> None:
    script = tmp_path / "flow.py"
    script.write_text(FLOW)
    with started(
        *(sys.executable, script, tmp_path / "logs"),
        **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE),
        env=os.environ | {"PYTHONPATH": str(Path(module.__file__).parents[2])},
    ) as flow:
        assert flow.stdout is not None
        assert flow.stdout.readline() == "up\n"
        workers_ = psutil.Process(flow.pid).children(recursive=True)
        assert len(workers_) >= 2
        if signum == signal.SIGINT:
            os.killpg(flow.pid, signum)  # what Ctrl-C does
        else:
            os.kill(flow.pid, signum)
        assert flow.wait(90) == -signum
        until(lambda: all(map(gone, workers_)), 90)
        said = flow.communicate(timeout=90)[1]
        assert said.count("Traceback") == (signum == signal.SIGINT), said  # the flow's own KeyboardInterrupt


def test_the_cores_are_shared_by_those_that_compute() -> None:
    spec = workers(ClusterConfig(generators=3, verifiers=2, device="cuda"))
    assert list(spec) == ["trainer", "generator-0", "generator-1", "generator-2", "verifier-0", "verifier-1"]
    threads = {name: int(each["options"]["env"]["OMP_NUM_THREADS"]) for name, each in spec.items()}
    assert threads["trainer"] == threads["generator-2"] == max(1, cores() // 4)
    assert threads["verifier-1"] == 1
    sharing = {name: each["options"]["env"][DEVICE_PROCESSES] for name, each in spec.items()}
    assert sharing["trainer"] == sharing["generator-2"] == "4"
    assert sharing["verifier-1"] == "1"
    assert spec["trainer"]["options"]["resources"] == {"CUDA": 1, "TRAINER": 1}
    assert spec["verifier-0"]["options"]["resources"] == {"CPU": 1, "VERIFIER": 1}


def test_a_call_meets_no_module_that_its_worker_is_still_importing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ready = tmp_path / "ready"
    (tmp_path / "swapped.py").write_text(  # as transformers takes its own place
        "import pathlib, sys, time, types\n"
        f"while not pathlib.Path({str(ready)!r}).exists():\n    time.sleep(0.05)\n"
        "whole = types.ModuleType(__name__)\n"
        "whole.ANSWER = 42\n"
        "sys.modules[__name__] = whole\n"
    )
    (tmp_path / "calls_swapped.py").write_text("import swapped\ndef call(given=swapped.ANSWER): return given\n")
    (tmp_path / "warm.py").write_text("import swapped, calls_swapped\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.syspath_prepend(tmp_path)
    ready.touch()
    call = importlib.import_module("calls_swapped").call
    ready.unlink()
    plain = Security(require_encryption=False)  # type: ignore[no-untyped-call]
    config = ClusterConfig(generators=1, threads=1, device="cpu")
    with local_cluster(config, plain, log_dir=tmp_path, preload={"GENERATOR": ["warm"]}) as client:
        called = client.submit(call, resources={"GENERATOR": 1})
        time.sleep(1)  # it is on its way to the worker, which imports
        ready.touch()
        assert called.result(timeout=90) == 42
