"""Every server of a plain `rlvf train` refuses a stranger's page; those of `rlvf up` are in test_up."""

from typing import Any

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


def test_workers_tell_nothing(lab: Any) -> None:
    ports = lab.client.run(lambda dask_worker: dask_worker.http_server.port)
    assert len(ports) == len(offers(lab.client)) == 3
    for port in ports.values():
        for path in ("status", "info/main/workers.html", "metrics", "health", "json/counts.json", ""):
            assert status(f"http://127.0.0.1:{port}/{path}") == 404
