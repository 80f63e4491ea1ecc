"""Somebody else on this machine, at every port that the cluster of a run opens."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from distributed import Client, Security

from infra.cluster import cluster as module
from infra.cluster.cluster import ClusterConfig, cluster, local_cluster
from infra.cluster.placement import offers

# Asks every port to run code that leaves a file, with everything that one can have who has no key of the cluster.
INTRUDER = """
import asyncio, os, sys
from distributed import Security
from distributed.core import Server, connect
from distributed.protocol.pickle import dumps
from infra.security.tls import temporary_security

def leave(mark):
    open(mark, "w").close()

async def intrude(port, scheme, security, op):
    mark = f"{sys.argv[1]}/{port}"
    words = {"function": dumps(leave), "args": dumps((mark,)), "kwargs": dumps({}), "wait": True, "reply": True}
    try:
        comm = await connect(f"{scheme}://127.0.0.1:{port}", timeout=2, **security.get_connection_args("client"))
        await comm.write({"op": op, **words})
        await comm.read()
    except (OSError, TimeoutError):
        pass

async def ask(ports, seconds=5):
    asked = [intrude(port, *way, op) for port in ports for way in ways for op in ("run", "run_function")]
    for ended in await asyncio.gather(*(asyncio.wait_for(each, seconds) for each in asked), return_exceptions=True):
        if isinstance(ended, ImportError):
            raise ended

async def try_all():
    servers = [Server({}), Server({})]
    for server, (scheme, security) in zip(servers, ways):
        await server.listen(f"{scheme}://127.0.0.1:0", **security.get_listen_args("scheduler"))
    await ask([server.port for server in servers], seconds=1)

ways = [("tcp", Security(require_encryption=False)), ("tls", temporary_security())]
asyncio.run(try_all())  # so that all is imported by now: our Python may lie where nobody else can read it
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
asyncio.run(ask(map(int, sys.argv[2:])))
print(os.getresuid())
"""


def ports_of_ours() -> set[int]:
    """The ports of this process and of all that it has started."""
    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return {
        connection.laddr.port
        for process in processes
        for connection in process.net_connections("tcp")
        if connection.status == psutil.CONN_LISTEN
    }


def listening(client: Client, before: set[int]) -> list[int]:
    """The ports that were opened since; other tests of this process may keep a cluster."""
    found = ports_of_ours() - before
    dask = [int(client.scheduler.address.rpartition(":")[2])]
    workers = client.scheduler_info(n_workers=-1)["workers"]
    dask += [
        int(address.rpartition(":")[2]) for worker, about in workers.items() for address in (worker, about["nanny"])
    ]
    assert found >= set(dask)
    return sorted(found)


def intrude(ports: Sequence[int], tmp_path: Path) -> set[int]:
    """The ports that ran what another user asked for."""
    if os.geteuid():
        pytest.skip("needs root, to be another user for a moment")
    marks = tmp_path / "marks"
    marks.mkdir()
    done = subprocess.run(
        [sys.executable, "-c", INTRUDER, str(marks), *map(str, ports)],
        env=os.environ | {"PYTHONPATH": str(Path(module.__file__).parents[2])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "(65534, 65534, 65534)\n"), done.stderr
    return {int(mark.name) for mark in marks.iterdir()}


def test_nobody_else_runs_code_on_a_port_of_the_cluster(tmp_path: Path) -> None:
    config = ClusterConfig(verifiers=0, threads=1, device="cpu")
    before = ports_of_ours()
    with cluster(config, log_dir=tmp_path / "logs") as client:
        assert intrude(listening(client, before), tmp_path) == set()
        assert len(offers(client)) == 2


@pytest.mark.slow
def test_without_certificates_anybody_does(tmp_path: Path) -> None:
    config = ClusterConfig(generators=0, verifiers=0, threads=1, device="cpu")
    before = ports_of_ours()
    with local_cluster(config, Security(require_encryption=False), log_dir=tmp_path / "logs") as client:  # type: ignore[no-untyped-call]
        ports = listening(client, before)
        ran = intrude(ports, tmp_path)
    assert len(ran) == 3, (ran, ports)  # the scheduler, the nanny and the worker; the rest is the scheduler's page
    assert len(ports) == 4
