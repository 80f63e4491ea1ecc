"""Every server of a plain `rlvf train` refuses a stranger's page; those of `rlvf up` are in commands/test_up.py."""

import http.client
from typing import Any

import psutil
import pytest

from infra.cluster.placement import offers
from infra.services.gate import basic
from infra.services.passwords import auth_of
from tests.strangers import refused, status


def test_prefect_of_a_run(lab: Any) -> None:
    found = refused(f"{lab.url}/deployments/filter", {"Authorization": f"Basic {basic(lab.auth)}"})
    assert found.pop("nothing") == 401
    assert set(found.values()) == {403}
    assert status(f"{lab.url}/deployments/filter", "POST", "{}", Authorization=f"Basic {basic(lab.auth)}") == 200


def test_dask_of_a_run(lab: Any) -> None:
    page = lab.client.dashboard_link
    password = {"Authorization": f"Basic {basic(auth_of(lab.dask_home, 'dashboard'))}"}
    found = refused(page, password)
    assert found.pop("nothing") == 401
    assert set(found.values()) == {403}
    assert status(page, **password) == 200
    assert status(page.replace("/status", "/health"), Host="10.0.0.7:8787") == 200  # Kubernetes asks so


def test_workers_speak_to_no_page(lab: Any) -> None:
    # by value: a worker cannot import this file
    found = lab.client.run(lambda: [tuple(each) for each in __import__("psutil").Process().net_connections("tcp")])
    ports = [each[3][1] for of_worker in found.values() for each in of_worker if each[5] == psutil.CONN_LISTEN]
    assert len(ports) >= len(offers(lab.client)) == 3
    for port in ports:
        with pytest.raises((http.client.HTTPException, OSError)):
            status(f"http://127.0.0.1:{port}/status")
