"""How many bytes of models a process keeps on a device."""

import subprocess
import sys
from pathlib import Path

import pytest
from distributed import Client, LocalCluster
from distributed.system import MEMORY_LIMIT

from infra.cluster.budget import budget
from infra.cluster.cluster import workers
from infra.cluster.cluster_config import ClusterConfig
from infra.cluster.role import Role, role_options

GB = 10**9


@pytest.mark.parametrize(("processes", "expected"), [(None, 64e9), ("2", 32e9), ("4", 16e9)])
def test_the_processes_of_a_device_share_it(
    processes: str | None, expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RLVF_DEVICE_PROCESSES", raising=False)
    if processes is not None:
        monkeypatch.setenv("RLVF_DEVICE_PROCESSES", processes)
    assert budget("cuda", 80 * GB) == expected
    assert budget("cpu", 1) == pytest.approx(0.8 * MEMORY_LIMIT / int(processes or 1))


def test_the_environment_says_otherwise_device_by_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLVF_DEVICE_PROCESSES", "2")
    monkeypatch.setenv("RLVF_MODELS_GB_CUDA", "20.5")
    assert budget("cuda", 80 * GB) == 20.5e9
    assert budget("mps", 80 * GB) == 32e9
    monkeypatch.setenv("RLVF_MODELS_GB_CUDA", "")
    assert budget("cuda", 80 * GB) == 32e9


@pytest.mark.parametrize("given", ["0", "-3", "nan", "20GB"])
def test_what_is_no_number_of_gb_is_refused(given: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLVF_MODELS_GB_CPU", given)
    with pytest.raises(ValueError, match=f"^RLVF_MODELS_GB_CPU={given}: give a number of GB above 0, or leave it out$"):
        budget("cpu", 1)


def test_a_limit_that_dask_sets_is_the_worker_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLVF_DEVICE_PROCESSES", "2")
    with (
        LocalCluster(  # type: ignore[no-untyped-call]
            n_workers=1, threads_per_worker=1, processes=False, memory_limit="3GB", dashboard_address=None
        ) as cluster,
        Client(cluster, set_as_default=False) as client,  # type: ignore[no-untyped-call]
    ):
        assert client.submit(budget, "cpu", 1).result(30) == pytest.approx(2.4e9)  # type: ignore[no-untyped-call]


def test_a_role_s_memory_is_that_of_its_device() -> None:
    role = Role("trainer", ("CUDA", "TRAINER"), 1, (), 2, 20)
    code = "from infra.cluster.budget import budget; print(budget('cuda', 0), budget('mps', 100))"
    environment = {**role_options(role, "127.0.0.1", None)["env"], "PATH": ""}
    root = Path(__file__).parents[3]
    said = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd=root, capture_output=True, text=True, check=True
    )
    assert said.stdout.split() == ["20000000000.0", "40.0"]


def test_local_processes_that_compute_take_the_option() -> None:
    config = ClusterConfig(device="cuda", generators=1, critics=1, memory=12)
    made = {name: of["options"]["env"].get("RLVF_MODELS_GB_CUDA") for name, of in workers(config).items()}
    assert made == {"trainer": "12.0", "generator-0": "12.0", "critic-0": "12.0", "verifier-0": None}
    assert not any(
        "RLVF_MODELS_GB_CUDA" in of["options"]["env"] for of in workers(ClusterConfig(device="cuda")).values()
    )
    with pytest.raises(ValueError, match="greater than 0"):
        ClusterConfig(memory=0)
