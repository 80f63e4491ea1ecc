"""What a worker tells of itself with its heartbeats."""

import time
from typing import Any

import pytest
from distributed import Client
from distributed.deploy.local import LocalCluster

from infra.cluster import pace


def test_the_pace_is_that_of_the_last_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_recent", pace.deque(maxlen=2))
    assert pace.tokens_per_second() is None
    pace.note(100, 1.0)
    assert pace.tokens_per_second() == 100
    pace.note(300, 1.0)
    pace.note(500, 1.0)
    assert pace.tokens_per_second() == 400


def test_a_plain_dask_worker_tells_after_its_first_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pace, "_recent", pace.deque(maxlen=2))

    def generate() -> None:
        from infra.cluster import pace

        pace.note(50, 0.5)

    def figures(client: Client) -> Any:
        (worker,) = client.scheduler_info(n_workers=-1)["workers"].values()
        return worker["metrics"].get("rlvf")

    with (
        LocalCluster(
            n_workers=1, threads_per_worker=1, processes=False, dashboard_address=None, protocol="tcp", host="127.0.0.1"
        ) as local,
        Client(local, set_as_default=False) as client,
    ):
        assert figures(client) is None
        client.submit(generate, pure=False).result(10)
        deadline = time.monotonic() + 10
        while figures(client) is None:
            assert time.monotonic() < deadline
            client.sync(client.scheduler.identity)
            time.sleep(0.05)
        told = figures(client)
    assert told["tokens_per_second"] == 100
    assert {"device", "memory_gb", "cores", "versions"} < set(told)
    assert told["versions"]["python"]
