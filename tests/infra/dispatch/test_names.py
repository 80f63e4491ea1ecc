"""Workers that nobody gave a name, as the command of our own hint starts them."""

import os
from pathlib import Path

import pytest
from mlflow import MlflowClient
from mlflow.utils.validation import _validate_metric_name

from infra.cluster.cluster import cluster
from infra.cluster.cluster_config import ClusterConfig
from infra.cluster.placement import PlacementConfig, offers, worker_name
from infra.dispatch.dispatch import Dispatch
from infra.runs.mlflow_run import Owner
from infra.runs.tracking import Tracker, TrackingConfig
from tests.conftest import StartScheduler
from tests.infra.cluster.processes import dask
from tests.processes import until


@pytest.mark.parametrize(
    ("announced", "name"),
    [
        ("generator-0", "generator-0"),
        ("tcp://10.0.0.7:40123", "10.0.0.7-40123"),
        ("tls://[fe80::1]:40123", "fe80-1-40123"),
        (0, "0"),  # a cluster of Dask's own numbers its workers
        ("a/../b c\n", "a-..-b-c"),
        ("..", "worker"),
        ("", "worker"),
    ],
)
def test_a_name_is_one_that_a_metric_may_have(announced: object, name: str) -> None:
    assert worker_name(announced) == name
    _validate_metric_name(f"sync/{name}/fetched_bytes")


@pytest.mark.slow
def test_a_worker_without_a_name_is_told_apart_and_logged(start_scheduler: StartScheduler, tmp_path: Path) -> None:
    scheduler = start_scheduler()
    with (
        dask("worker", scheduler.address, "--nthreads", "1", "--no-nanny", "--resources", "GENERATOR=1 CPU=1"),
        cluster(ClusterConfig(scheduler=scheduler.address)) as client,
        Dispatch(client, PlacementConfig()) as dispatch,
    ):
        until(lambda: offers(client))
        assert list(dispatch.lease("generate", os.getpid, [()])) != []
        (span,) = dispatch.timeline.take()
        (offer,) = offers(client)
    assert span.worker == offer.name == worker_name(offer.address)
    config = TrackingConfig(system_metrics=False)
    with Tracker(
        config,
        home=tmp_path,
        experiment="sums",
        run_name="nameless",
        run_id=None,
        params={},
        owner=Owner("x"),
        local=tmp_path / "m.jsonl",
    ) as tracker:
        tracker.log(1, {f"sync/{span.worker}/fetched_bytes": 1.0})
    assert tracker.run_id is not None
    logged = MlflowClient(f"sqlite:///{tmp_path / 'mlflow.db'}").get_run(tracker.run_id).data.metrics
    assert logged == {f"sync/{span.worker}/fetched_bytes": 1.0}
