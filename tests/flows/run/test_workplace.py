"""A flow works on a cluster that runs its own source."""

from pathlib import Path

import pytest
from distributed import LocalCluster

from flows.run.display import Display
from flows.run.workplace import workplace
from infra.cluster.cluster import ClusterConfig
from infra.cluster.placement import METRIC, PlacementConfig, PlacementError


def test_a_flow_does_not_begin_on_workers_of_another_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLVF_HOME", str(tmp_path))
    with (
        LocalCluster(
            n_workers=1,
            name="far",
            processes=False,
            protocol="tcp",
            host="127.0.0.1",
            threads_per_worker=1,
            dashboard_address=None,
            resources={"GENERATOR": 1, "TRAINER": 1, "VERIFIER": 1},
            metrics={METRIC: lambda _: {"versions": {"rlvf": "0.1.0"}}},
        ) as cluster,
        Display() as display,
        pytest.raises(PlacementError, match=r"^these workers run another source of rlvf .*\(unknown\)"),
        workplace(ClusterConfig(scheduler=cluster.scheduler_address), PlacementConfig(), display),
    ):
        pass
