"""What a machine says of itself."""

import os
from pathlib import Path

import pytest

from infra.cluster import machine as module
from infra.cluster.machine import cores, detect_device, this_machine, versions


def test_the_device_is_found_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.importlib.metadata, "version", lambda _: "2.13.0")
    monkeypatch.setattr(module.shutil, "which", lambda _: "/usr/bin/nvidia-smi")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert detect_device() == "CUDA"
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert detect_device() in ("CPU", "MPS")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(module.importlib.metadata, "version", lambda _: "2.13.0+cpu")
    assert detect_device() in ("CPU", "MPS")


def test_a_machine_is_described_for_people() -> None:
    here = this_machine("CPU")
    assert here.device == "CPU"
    assert here.name
    assert here.memory_gb > 0.1
    assert here.cores == cores() >= 1


def test_a_gpu_has_memory_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says = tmp_path / "nvidia-smi"
    says.write_text("#!/bin/sh\necho NVIDIA H100 80GB HBM3, 81559\n")
    says.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    this_machine.cache_clear()
    try:
        gpu = this_machine("CUDA")
    finally:
        this_machine.cache_clear()
    assert (gpu.name, gpu.memory_gb) == ("NVIDIA H100 80GB HBM3", 85.5)


def test_versions_name_what_two_machines_must_agree_on() -> None:
    assert {"python", "dask", "distributed", "msgpack", "numpy", "torch", "transformers"} <= set(versions())
