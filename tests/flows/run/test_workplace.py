"""A flow works on a cluster that runs its own source."""

from pathlib import Path

import pytest

from flows.run.display import Display
from flows.run.workplace import open_workplace
from infra.cluster.cluster import ClusterError
from infra.cluster.cluster_config import ClusterConfig
from infra.cluster.placement import METRIC, PlacementConfig, PlacementError
from tests.lone_worker import lone_worker


@pytest.mark.parametrize(
    ("config", "line"),
    [
        (ClusterConfig(scheduler="tcp://10.0.0.1:8786"), "joining the cluster of tcp://10.0.0.1:8786"),
        (
            ClusterConfig(generators=2, verifiers=1),
            "starting the workers trainer, generator-0, generator-1, verifier-0",
        ),
    ],
)
def test_what_takes_its_time_is_said_before_it_is_done(
    config: ClusterConfig,
    line: str,
    home_folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def cluster(*_: object, **__: object) -> None:
        raise ClusterError("begun")

    monkeypatch.delenv("RLVF_SCHEDULER", raising=False)
    monkeypatch.setattr("flows.run.workplace.cluster", cluster)
    with (
        Display() as display,
        pytest.raises(ClusterError, match="begun"),
        open_workplace(config, PlacementConfig(), display),
    ):
        pass
    assert capsys.readouterr().err.splitlines() == [f"home {home_folder} ($RLVF_HOME)", line]


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
