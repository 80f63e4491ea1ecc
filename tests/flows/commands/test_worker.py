"""`rlvf worker` by a bundle of `rlvf certs`: real processes, a real scheduler over TLS on the loopback interface."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client

from flows.cli import main
from infra.cluster.placement import PlacementConfig, offers
from infra.cluster.reach import parse_address
from infra.cluster.settings import dask_environment
from infra.dispatch.dispatch import Dispatch
from infra.security.tls import dask_security, tls_environment
from infra.services.scheduler import ask
from tests.processes import of_each, until

pytestmark = pytest.mark.usefixtures("own_signals_and_environment")
VERIFY = PlacementConfig().resources("verify")


@dataclass
class Running:
    """A command in a process group of its own, and what it says."""

    process: subprocess.Popen[bytes]
    log: Path

    def says(self, pattern: str, times: int = 1, seconds: float = 45.0) -> None:
        until(lambda: len(re.findall(pattern, self.log.read_text())) >= times, seconds, about=self.log.read_text)

    def family(self) -> list[psutil.Process]:
        parent = psutil.Process(self.process.pid)
        return [parent, *parent.children(recursive=True)]

    def signal_all(self, number: signal.Signals) -> None:
        os.killpg(self.process.pid, number)


Start = Callable[..., Running]


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Start]:
    """Starts `rlvf` (or another program) in the background; everything has ended when the module ends."""
    started: list[Running] = []

    def begin(*words: str, program: tuple[str, ...] | None = None, **environment: str) -> Running:
        log = tmp_path_factory.mktemp("command") / "log"
        with log.open("wb") as out:
            command = program or (sys.executable, "-c", "from flows.cli import main; main()")
            process = subprocess.Popen(
                [*command, *words], stdout=out, stderr=out, start_new_session=True, env=os.environ | environment
            )
        started.append(Running(process, log))
        return started[-1]

    yield begin
    for each in started:
        if each.process.poll() is None:
            family = each.family()
            each.process.terminate()
            try:
                each.process.wait(90)
            except subprocess.TimeoutExpired:
                each.signal_all(signal.SIGKILL)
                each.process.wait()
            _, alive = psutil.wait_procs(family, 5)
            for left in alive:
                left.kill()


@dataclass
class Town:
    """A scheduler over TLS that can be killed and started again, and a client of it."""

    scheduler: Any
    client: Client
    home: Path
    begin: Callable[[], Any]

    def names(self) -> list[str]:
        try:
            return sorted(offer.name for offer in offers(self.client))
        except OSError:
            return []

    def restart(self) -> None:
        self.scheduler.process.send_signal(signal.SIGKILL)
        self.scheduler.process.wait()
        self.client.close(timeout=1)
        self.scheduler = self.begin()
        self.client = Client(self.scheduler.address, security=dask_security(self.home), set_as_default=False)


@pytest.fixture(scope="module")
def town(first: Path, start_scheduler: Any) -> Iterator[Town]:
    port = None

    def begin() -> Any:
        return start_scheduler(first, port)

    scheduler = begin()
    port = int(scheduler.address.rpartition(":")[2])
    client = Client(scheduler.address, security=dask_security(first), set_as_default=False)
    town = Town(scheduler, client, first, begin)
    yield town
    town.client.close(timeout=2)


@pytest.fixture(scope="module")
def jetson(town: Town, start: Start, tmp_path_factory: pytest.TempPathFactory) -> Running:
    """The machine that joins, by a bundle."""
    folder = tmp_path_factory.mktemp("jetson")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RLVF_HOME", str(town.home))
        patch.setenv("RLVF_STORAGE", str(folder))
        main(["certs", "jetson", "--scheduler", town.scheduler.address, "--out", str(folder / "jetson.bundle")])
    bundle = str(folder / "jetson.bundle")
    return start("worker", "--bundle", bundle, "--roles", "verifier", "--device", "cpu", RLVF_HOME=str(folder / "home"))


@pytest.mark.slow
def test_a_machine_joins_with_its_bundle(town: Town, jetson: Running) -> None:
    jetson.says(rf"joined {town.scheduler.address} as jetson: CPU VERIFIER\n")
    assert town.names() == ["jetson-verifier"]
    said = jetson.log.read_text()
    for name in ("scheduler", "interface", "way back", "versions", "clock", "storage"):
        assert re.search(rf"^ok +{name} ", said, re.MULTILINE), said
    assert town.client.submit(sum, [1, 2], resources=VERIFY, pure=False).result(20) == 3
    (seen,) = ask(parse_address(town.scheduler.address, town.home), town.home).workers
    assert seen.versions["distributed"]
    (info,) = town.client.scheduler_info(n_workers=-1)["workers"].values()
    figures = info["metrics"]["rlvf"]
    assert figures["tokens_per_second"] is None
    assert figures["cores"] >= 1
    assert figures["device"]


@pytest.mark.slow
def test_nothing_listens_beyond_the_loopback_interface(jetson: Running) -> None:
    hosts = {
        connection.laddr.ip
        for connection in chain(*of_each(jetson.family(), psutil.Process.net_connections))
        if connection.status == psutil.CONN_LISTEN
    }
    assert hosts == {"127.0.0.1"}


async def remove(address: str, dask_scheduler: Any) -> None:
    await dask_scheduler.remove_worker(address, stimulus_id="worker-ttl")


@pytest.mark.slow
def test_a_second_machine_of_the_same_name_is_refused_in_one_line(town: Town, jetson: Running, start: Start) -> None:
    assert jetson.process.poll() is None
    before = until(town.names)
    home = str(town.home)
    again = start("worker", town.scheduler.address, "--name", "jetson", "--roles", "verifier", RLVF_HOME=home)
    assert again.process.wait(90) == 2
    *_, last = again.log.read_text().strip().splitlines()
    assert last == (
        "rlvf: --name jetson: jetson-verifier is there, this machine works for it already; "
        "to join too, choose another name"
    )
    assert town.names() == before
    other = start("worker", town.scheduler.address, "--name", "beside", "--roles", "verifier", RLVF_HOME=home)
    until(lambda: "beside-verifier" in town.names())
    other.process.terminate()
    other.process.wait(60)
    until(lambda: town.names() == before)


@pytest.mark.slow
def test_a_machine_that_slept_joins_again(town: Town, jetson: Running) -> None:
    until(lambda: town.names() == ["jetson-verifier"])
    jetson.signal_all(signal.SIGSTOP)
    try:
        # What a scheduler does when it has not heard of a worker for `worker-ttl`; then it tries 30 s to restart it.
        (address,) = [offer.address for offer in offers(town.client)]
        town.client.run_on_scheduler(remove, address)
        until(lambda: town.names() == [])
    finally:
        jetson.signal_all(signal.SIGCONT)
    until(lambda: town.names() == ["jetson-verifier"], 45, about=jetson.log.read_text)
    assert town.client.submit(sum, [1, 2], resources=VERIFY, pure=False).result(20) == 3


@pytest.mark.slow
def test_a_machine_joins_a_scheduler_that_was_killed_and_came_back(town: Town, jetson: Running) -> None:
    town.restart()
    until(lambda: town.names() == ["jetson-verifier"], 45, about=jetson.log.read_text)
    assert town.client.submit(sum, [1, 2], resources=VERIFY, pure=False).result(20) == 3
    assert "Traceback" not in jetson.log.read_text()


@pytest.mark.slow
def test_a_lease_goes_to_another_worker_when_its_machine_leaves(
    town: Town, jetson: Running, start: Start, tmp_path: Path
) -> None:
    """The other is a raw `dask worker`, which works the same."""
    until(lambda: town.names() == ["jetson-verifier"])
    family = jetson.family()

    def judge(mark: Path) -> str:
        from distributed import get_worker

        name = str(get_worker().name)
        mark.with_name(name).touch()
        while name == "jetson-verifier":  # never ends there
            time.sleep(0.05)
        return name

    with Dispatch(town.client, PlacementConfig()) as dispatch:
        answers: list[Any] = []
        leases = dispatch.lease("verify", judge, [(tmp_path / "mark",)])
        thread = threading.Thread(target=lambda: answers.extend(leases), daemon=True)
        thread.start()
        until((tmp_path / "jetson-verifier").exists)
        start(
            *(town.scheduler.address, "--name", "raw", "--nthreads", "1", "--no-nanny", "--memory-limit", "0"),
            *("--no-dashboard", "--host", "127.0.0.1", "--resources", "CPU=1 VERIFIER=1"),
            program=(sys.executable, "-m", "distributed.cli.dask_worker"),
            **tls_environment(town.home),
            **dask_environment(),
        )
        until(lambda: "raw" in town.names())
        began = time.monotonic()
        jetson.process.send_signal(signal.SIGTERM)
        thread.join(90)
        assert answers == [(0, "raw")]
    assert jetson.process.wait(90) == 0
    assert time.monotonic() - began < 12
    jetson.says("jetson has left")
    assert town.names() == ["raw"]
    _, alive = psutil.wait_procs(family, 5)
    assert alive == []


@pytest.mark.slow
def test_an_interrupted_worker_that_waits_for_its_scheduler_ends_at_once(town: Town, start: Start) -> None:
    lone = start("worker", town.scheduler.address, "--roles", "verifier", "--name", "lone", RLVF_HOME=str(town.home))
    lone.says("joined .* as lone")
    until(lambda: "lone-verifier" in town.names())
    family = lone.family()
    town.client.close(timeout=2)
    town.scheduler.process.kill()
    lone.says("nothing listens there: .* trying again in")
    lone.signal_all(signal.SIGINT)
    assert lone.process.wait(90) == 0
    _, alive = psutil.wait_procs(family, 5)
    assert alive == []
