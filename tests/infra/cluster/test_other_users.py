"""Somebody else on this machine, at every port that the cluster of a run opens."""

from pathlib import Path

import psutil
import pytest
from distributed import Client, Security

from infra.cluster.cluster import cluster, local_cluster
from infra.cluster.cluster_config import ClusterConfig
from infra.cluster.placement import offers
from tests import other_users
from tests.other_users import intrude

pytestmark = pytest.mark.slow


def ports_of_ours() -> set[int]:
    """The ports of this process and of all that it has started."""
    return set(other_users.listening([psutil.Process(), *psutil.Process().children(recursive=True)]))


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


def test_nobody_else_runs_code_on_a_port_of_the_cluster(tmp_path: Path) -> None:
    config = ClusterConfig(verifiers=0, threads=1, device="cpu")
    before = ports_of_ours()
    with cluster(config, log_dir=tmp_path / "logs") as client:
        assert intrude(listening(client, before), tmp_path) == set()
        assert len(offers(client)) == 2


def test_without_certificates_anybody_does(tmp_path: Path) -> None:
    config = ClusterConfig(generators=0, verifiers=0, threads=1, device="cpu")
    before = ports_of_ours()
    with local_cluster(config, Security(require_encryption=False), log_dir=tmp_path / "logs") as client:  # type: ignore[no-untyped-call]
        ports = listening(client, before)
        ran = intrude(ports, tmp_path)
    assert len(ran) == 3, (ran, ports)  # the scheduler, the nanny and the worker; the rest is the scheduler's page
    assert len(ports) == 4
