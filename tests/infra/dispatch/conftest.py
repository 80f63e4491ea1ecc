"""A real cluster whose workers may be killed, and a dispatch on it."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from distributed import Client, Security

from infra.cluster.cluster import local_cluster
from infra.cluster.cluster_config import ClusterConfig
from infra.cluster.placement import PlacementConfig, offers
from infra.dispatch.dispatch import Dispatch
from tests.processes import until


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    config = ClusterConfig(generators=2, threads=1, device="cpu")
    plain = Security(require_encryption=False)  # type: ignore[no-untyped-call]  # so that Dask's own commands join it
    with local_cluster(config, plain, log_dir=tmp_path_factory.mktemp("logs")) as client:
        yield client


@pytest.fixture
def dispatch(client: Client, tmp_path: Path) -> Iterator[Dispatch]:
    # A worker that the test before has killed may still be on its way back.
    until(lambda: len(offers(client)) == 4)
    with Dispatch(client, PlacementConfig()) as dispatch:
        yield dispatch
    (tmp_path / "go").touch()  # calls that wait for it give their worker back
