"""What a container or a batch job leaves of the machine's memory."""

import math
from pathlib import Path

import psutil
import pytest
import torch

from rl.model import memory
from rl.model.control_group import group_bytes
from rl.model.memory import free_bytes

GB = 10**9


def group(folder: Path, files: dict[str, str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, said in files.items():
        (folder / name).write_text(said + "\n")


@pytest.fixture
def process(tmp_path: Path) -> Path:
    return tmp_path / "cgroup"


def test_the_tightest_of_the_groups_around_a_process_counts(tmp_path: Path, process: Path) -> None:
    root = tmp_path / "fs"
    process.write_text("0::/slurm/job_7/step_0\n")
    assert group_bytes(process, root) == math.inf  # without files
    stat = f"anon {GB}\ninactive_file {GB // 2}\nactive_file 7"
    group(root / "slurm", {"memory.max": f"{64 * GB}", "memory.current": f"{20 * GB}", "memory.stat": stat})
    group(root / "slurm/job_7", {"memory.max": f"{4 * GB}", "memory.current": f"{3 * GB}", "memory.stat": stat})
    group(root / "slurm/job_7/step_0", {"memory.max": "max", "memory.current": f"{GB}", "memory.stat": stat})
    assert group_bytes(process, root) == 1.5 * GB
    (root / "slurm/job_7/memory.max").write_text("max\n")
    assert group_bytes(process, root) == 44.5 * GB
    (root / "slurm/memory.high").write_text(f"{30 * GB}\n")  # beyond which a process is slowed down
    assert group_bytes(process, root) == 10.5 * GB


def test_a_container_sees_its_own_as_the_root(tmp_path: Path, process: Path) -> None:
    root = tmp_path / "fs"
    process.write_text("0::/\n")
    group(root, {"memory.max": f"{2 * GB}", "memory.current": f"{GB}", "memory.stat": "anon 7"})
    assert group_bytes(process, root) == GB


def test_the_first_version_s_groups_are_known(tmp_path: Path, process: Path) -> None:
    root = tmp_path / "fs"
    process.write_text("9:name=systemd:/a\n5:cpu,cpuacct:/docker/1\n4:memory:/docker/1\n0::/\n")
    found = {"memory.usage_in_bytes": f"{GB}", "memory.stat": f"cache 1\ntotal_inactive_file {GB // 4}"}
    group(root / "memory", found | {"memory.limit_in_bytes": f"{3 * GB}"})  # what a container's path is not seen by
    assert group_bytes(process, root) == 2.25 * GB


def test_what_is_free_is_no_more_than_that(monkeypatch: pytest.MonkeyPatch) -> None:
    free = psutil.virtual_memory().available
    for left, expected in ((GB // 100, GB // 100), (-5.0, 0)):
        monkeypatch.setattr(memory, "group_bytes", lambda left=left: left)
        assert free_bytes(torch.device("cpu")) == expected
    monkeypatch.setattr(memory, "group_bytes", lambda: math.inf)
    assert free_bytes(torch.device("cpu")) > free / 2
