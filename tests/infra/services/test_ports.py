"""Which port each service gets."""

import socket
from pathlib import Path

import pytest

from infra.hosts import LOOPBACK, free_port
from infra.services import ports as places
from infra.services.ports import Ports


def test_a_default_port_that_is_taken_is_replaced_and_said_and_a_chosen_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    said: list[str] = []
    with socket.create_server((LOOPBACK, 0)) as taker:
        taken = taker.getsockname()[1]
        monkeypatch.setitem(places.PORTS, "mlflow", taken)
        port = Ports(tmp_path, LOOPBACK, {}, said.append).choose("mlflow")
        assert port != taken
        assert said == [f"port {taken} is in use: the MLflow server listens on {port}"]
        with pytest.raises(ValueError, match=f"--port-mlflow {taken}: another program listens there"):
            Ports(tmp_path, LOOPBACK, {"mlflow": taken}, said.append).choose("mlflow")
    assert Ports(tmp_path, LOOPBACK, {}, said.append).choose("mlflow") == port  # that of the last time


def test_one_that_was_lost_since_it_was_chosen_is_replaced_unless_somebody_chose_it(tmp_path: Path) -> None:
    said: list[str] = []
    ports = Ports(tmp_path, LOOPBACK, {}, said.append)
    port = ports.choose("scheduler")
    assert not ports.moved("scheduler")
    with socket.create_server((LOOPBACK, port)):
        assert ports.moved("scheduler")
        assert ports.chosen["scheduler"] != port
        assert f"port {port} is in use" in said[-1]
        given = Ports(tmp_path, LOOPBACK, {"scheduler": port}, said.append)
        given.chosen["scheduler"] = port
        with pytest.raises(ValueError, match=f"--port-scheduler {port}"):
            given.moved("scheduler")


def test_no_two_services_get_one_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match="--port-mlflow 5300: is the port of prefect already; choose another"):
        Ports(tmp_path, LOOPBACK, {"prefect": 5300, "mlflow": 5300}, str)
    usual = free_port(0, LOOPBACK)
    monkeypatch.setitem(places.PORTS, "prefect", usual)
    chosen = Ports(tmp_path, LOOPBACK, {"mlflow": usual}, str)
    assert chosen.wanted("prefect") != usual  # it is looked for first, and was free
    assert chosen.choose("prefect") != chosen.choose("mlflow") == usual
    Ports(tmp_path, LOOPBACK, {"prefect": 0, "mlflow": 0}, str)
