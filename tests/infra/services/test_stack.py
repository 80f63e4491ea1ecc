"""All services together: what one of them loses or lacks, and what is left when they end."""

import socket
import urllib.parse
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from infra.cluster.reach import parse_address
from infra.hosts import LOOPBACK
from infra.services import part
from infra.services.http import proves
from infra.services.of_home import living
from infra.services.part import TITLES
from infra.services.passwords import auth_of
from infra.services.ports import PORTS
from infra.services.programs import StackConfig
from infra.services.scheduler import announce, ask
from infra.services.stack import Stack
from infra.services.supervisor import BackOff, ServiceError
from tests.processes import until


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(BackOff, "FIRST", 0.05)
    for name in ("PREFECT_API_URL", "RLVF_SCHEDULER"):
        monkeypatch.delenv(name, raising=False)


def stack(home: Path, say: Callable[[str], None]) -> Stack:
    return Stack(
        StackConfig(home, str(home), ports=dict.fromkeys(PORTS, 0)),
        deploy=lambda *_: True,
        announce=lambda known: announce(parse_address(str(known.scheduler), home), home, known),
        joined=lambda _: True,
        say=say,
    )


@pytest.mark.slow
def test_ports_that_are_lost_between_the_look_and_the_start_are_replaced(home_folder: Path) -> None:
    said: list[str] = []
    with stack(home_folder, said.append) as services, ExitStack() as takers:
        before = services.addresses
        lost = [urllib.parse.urlsplit(str(url)).port for url in (before.mlflow, before.scheduler, before.dashboard)]
        for port in lost:  # another home's `rlvf up` is quicker
            takers.enter_context(socket.create_server((LOOPBACK, int(port or 0))))

        def works() -> bool:
            services.poll()
            known = services.addresses
            return all(row.state == "up" for row in services.rows() if row.address in (known.mlflow, known.scheduler))

        until(works)
        after = services.addresses
        found = [urllib.parse.urlsplit(str(url)).port for url in (after.mlflow, after.scheduler, after.dashboard)]
        assert not set(found) & set(lost)
        assert proves(str(after.mlflow), auth_of(home_folder, "mlflow"))
        assert proves(str(after.dashboard), auth_of(home_folder, "dashboard"))
        assert ask(parse_address(str(after.scheduler), home_folder), home_folder).services.mlflow == after.mlflow
    assert living(home_folder) == []


@pytest.mark.slow
def test_one_that_cannot_start_ends_them_all_and_leaves_nothing(
    home_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_BACKEND_STORE_URI", "nothing://there")
    said: list[str] = []
    with (
        pytest.raises(ServiceError, match=r"the MLflow server does not start; .*mlflow\.log ends with: .*nothing"),
        stack(home_folder, said.append) as services,
    ):
        until(lambda: services.poll())
    assert living(home_folder) == []
    assert not [line for line in said if "stays" in line]


@pytest.mark.slow
def test_a_folder_of_another_user_in_the_shared_temporary_one_stops_no_prefect_worker(
    home_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runner_storage").touch()  # nobody, root neither, makes a folder below this one
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    with stack(home_folder, lambda _: None) as services:

        def works() -> bool:
            services.poll()
            return all(row.state == "up" for row in services.rows() if row.name == TITLES["worker"])

        until(works)
    assert [path.name for path in tmp_path.iterdir() if path.name == "runner_storage"] == ["runner_storage"]


def test_what_a_service_died_of_is_the_line_of_its_exception(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_text("Traceback (most recent call last):\nPermissionError: [Errno 13] /tmp/x\nAn exception occurred.\n")
    assert part._last(log) == "PermissionError: [Errno 13] /tmp/x"


def test_no_deployments_are_registered_at_a_stranger_on_the_port_of_prefect(home_folder: Path) -> None:
    """Prefect's own command, which registers them, tells the password to whoever answers."""
    told: list[str] = []
    services = Stack(
        StackConfig(home_folder, str(home_folder)),
        deploy=lambda _, url: bool(told.append(url)) or True,
        announce=lambda _: None,
        joined=lambda _: True,
        say=lambda _: None,
    )
    url = "http://127.0.0.1:4200/api"
    proved = [False]
    services._there["prefect"] = url
    stands_for_it: Any = SimpleNamespace(is_ours=True, serves=lambda: proved[0], environment={})
    services._prefect = stands_for_it
    services.poll()
    assert told == []
    proved[0] = True
    services.poll()
    assert told == [url]
