"""A flow works on a cluster that runs its own source."""

from pathlib import Path

import pytest

from flows.run.display import Display
from flows.run.workplace import open_workplace
from infra.cluster.cluster_config import ClusterConfig
from infra.cluster.placement import METRIC, PlacementConfig, PlacementError
from tests.lone_worker import lone_worker


def test_a_flow_does_not_begin_on_workers_of_another_source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLVF_HOME", str(tmp_path))
    metrics = {METRIC: lambda _: {"versions": {"rlvf": "0.1.0"}}}
    with (
        lone_worker("far", {"GENERATOR": 1, "TRAINER": 1, "VERIFIER": 1}, metrics=metrics) as scheduler,
        Display() as display,
        pytest.raises(PlacementError, match=r"^these workers run another source of rlvf .*\(unknown\)"),
        open_workplace(ClusterConfig(scheduler=scheduler), PlacementConfig(), display),
    ):
        pass
