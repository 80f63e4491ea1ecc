"""Another user of this machine, or of its network: what each port that is open to them does for whom has no secret."""

import json
import os
import subprocess
import sys
from collections.abc import Iterable
from itertools import chain
from pathlib import Path

import psutil
import pytest

from infra.hosts import LOOPBACK
from tests.processes import of_each

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
        comm = await connect(f"{scheme}://{host}:{port}", timeout=2, **security.get_connection_args("client"))
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
host = "127.0.0.1"
asyncio.run(try_all())  # so that all is imported by now: our Python may lie where nobody else can read it
host = sys.argv[2]
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
asyncio.run(ask(map(int, sys.argv[3:])))
print(os.getresuid())
"""

# Asks every port for its first page, with and without TLS, whoever it says that it is.
VISITOR = """
import http.client, json, os, socket, ssl, sys
from contextlib import suppress

plain = ssl.create_default_context()
plain.check_hostname, plain.verify_mode = False, ssl.CERT_NONE
socket.getaddrinfo("127.0.0.1", 80)  # so that all is imported by now: our Python may lie where nobody else can read it
"".encode("idna")
os.setgroups([])
os.setresgid(65534, 65534, 65534)
os.setresuid(65534, 65534, 65534)
host, found = sys.argv[2], {}
for port in map(int, sys.argv[3:]):
    found[port] = []
    for made in (
        http.client.HTTPConnection(host, port, timeout=5),
        http.client.HTTPSConnection(host, port, timeout=5, context=plain),
    ):
        with suppress(OSError, http.client.HTTPException):
            made.request("GET", "/")
            found[port].append(made.getresponse().status)
        made.close()
print(json.dumps(found))
print(os.getresuid())
"""


def listening(processes: Iterable[psutil.Process]) -> list[int]:
    """The ports that these have open."""
    connections = chain(*of_each(processes, lambda process: process.net_connections("tcp")))
    return sorted({each.laddr.port for each in connections if each.status == psutil.CONN_LISTEN})


def intrude(ports: Iterable[int], folder: Path, host: str = LOOPBACK, before: tuple[str, ...] = ()) -> set[int]:
    """The ports that ran, in Dask's protocol, what another user asked for; files of `folder` are the proof. `before` is
    what the program is run by."""
    marks = folder / "marks"
    marks.mkdir()
    _as_another(INTRUDER, str(marks), host, ports, before)
    return {int(mark.name) for mark in marks.iterdir()}


def visit(ports: Iterable[int], host: str = LOOPBACK, before: tuple[str, ...] = ()) -> dict[int, list[int]]:
    """By port, the statuses with which it answers another user in HTTP; none where it does not speak that, or not to
    him."""
    found = _as_another(VISITOR, "", host, ports, before).splitlines()[0]
    return {int(port): statuses for port, statuses in json.loads(found).items()}


def _as_another(program: str, folder: str, host: str, ports: Iterable[int], before: tuple[str, ...]) -> str:
    if os.geteuid():
        pytest.skip("needs root, to be another user for a moment")
    done = subprocess.run(
        [*before, sys.executable, "-c", program, folder, host, *map(str, ports)],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert (done.returncode, done.stdout.splitlines()[-1:]) == (0, ["(65534, 65534, 65534)"]), done.stderr
    return done.stdout
