"""A port that is kept while its server is dead: real processes."""

import socket
import sys
from pathlib import Path

import psutil
import pytest

from infra.hosts import LOOPBACK, free_port
from infra.services.kept_port import KeptPort, is_kept
from infra.services.prefect_server import PrefectServer
from infra.services.supervisor import Program, Service
from tests.processes import until

SERVER = """
import socket, sys
listening = socket.socket(fileno=int(sys.argv[1]))
while True:
    there, _ = listening.accept()
    there.sendall(b"here")
    there.close()
"""


def test_nobody_takes_the_port_of_a_dead_server_and_who_asks_waits_for_the_next_one(tmp_path: Path) -> None:
    service = Service(tmp_path / "service", tmp_path / "service.log")
    service.hold()
    port, kept = free_port(0), KeptPort(service.folder)

    def start() -> None:
        listening = kept.keep(LOOPBACK, port)
        assert listening is not None
        command = [sys.executable, "-c", SERVER, str(listening)]
        assert service.start(Program(command, {}, service.folder, sockets=[listening]))

    def ask() -> socket.socket:
        return socket.create_connection((LOOPBACK, port), timeout=60)

    try:
        start()
        with ask() as asked:
            assert asked.recv(9) == b"here"
        (server,) = psutil.Process(until(lambda: service.found().pid)).children()
        server.kill()
        until(lambda: not service.lives())
        with pytest.raises(OSError, match="in use"):
            socket.create_server((LOOPBACK, port))
        with ask() as asked:
            start()
            assert asked.recv(9) == b"here"
        kept.free()  # as the end of its process does
        with ask() as asked:
            assert asked.recv(9) == b"here"
    finally:
        kept.free()
        service.release()
    socket.create_server((LOOPBACK, port)).close()


def test_a_port_that_somebody_else_has_is_not_kept(tmp_path: Path) -> None:
    kept = KeptPort(tmp_path)
    with socket.create_server((LOOPBACK, 0)) as taken:
        assert kept.keep(LOOPBACK, taken.getsockname()[1]) is None
    assert not kept.is_held
    assert not is_kept(tmp_path)


def test_while_the_port_is_kept_nobody_else_starts_a_server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PREFECT_API_URL", raising=False)
    kept, port = KeptPort(tmp_path / "prefect"), free_port(0)
    kept.keep(LOOPBACK, port)
    try:
        run = PrefectServer(tmp_path, print)  # while the server is dead
        run.url = f"http://{LOOPBACK}:{port}/api"  # or it was alive then
        run.revive()
        assert not run.service.lives()
        assert is_kept(tmp_path / "prefect")
    finally:
        kept.free()
        run.stop()
    assert not is_kept(tmp_path / "prefect")
