"""This machine: its device, memory, cores, and the versions of installed packages. No torch is imported."""

import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
import uuid
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import psutil

from infra.cluster.source import SOURCE, source_digest

GB = 1e9
# What two machines must agree on; how far, `infra.checks.cluster` says.
PACKAGES = ("rlvf", "dask", "distributed", "msgpack", "cloudpickle", "numpy", "torch", "transformers")


@dataclass(frozen=True)
class Machine:
    """A machine, as its workers announce it."""

    device: str  # the tag
    name: str  # of the device, for people
    memory_gb: float  # of the device
    cores: int


def detect_device() -> str:
    """The device tag of this machine: `CUDA`, `MPS` or `CPU`."""
    try:
        cpu_build = importlib.metadata.version("torch").endswith("+cpu")
    except importlib.metadata.PackageNotFoundError:
        cpu_build = False
    nvidia = any(Path(path).exists() for path in ("/proc/driver/nvidia/version", "/dev/nvhost-gpu", "/dev/nvmap"))
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if (nvidia or shutil.which("nvidia-smi")) and not (cpu_build or hidden):
        return "CUDA"
    return "MPS" if sys.platform == "darwin" and platform.machine() == "arm64" else "CPU"


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def machine_name() -> str:
    """The same of all processes that share this machine's cores, in containers too; another after its next start."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    return boot.read_text().strip() if boot.exists() else f"{uuid.getnode():x}"


@cache
def this_machine(device: str) -> Machine:
    """This machine with that device tag; `memory_gb` is a GPU's own memory where it has some."""
    memory = psutil.virtual_memory().total / GB
    if device == "CUDA":
        name, own = _nvidia()
        return Machine(device, name, round(own or memory, 1), cores())
    return Machine(device, _processor(), round(memory, 1), cores())


@cache
def versions() -> dict[str, str]:
    """The versions of Python, of the installed ones of `PACKAGES`, and of our source."""
    return {"python": platform.python_version(), **installed(PACKAGES), SOURCE: source_digest()}


def installed(packages: Iterable[str]) -> dict[str, str]:
    """The versions of those of the packages that are installed."""
    found = {}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def _nvidia() -> tuple[str, float]:
    """The name of the first visible GPU and its GB; 0 where it shares the machine's memory, as on a Jetson."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    try:
        said = subprocess.run(
            ["nvidia-smi", f"--id={visible}", "--query-gpu=name,memory.total", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        ).stdout
        name, _, mebibytes = said.splitlines()[0].rpartition(", ")
        return name, float(mebibytes) * 2**20 / GB
    except (OSError, subprocess.SubprocessError, ValueError, IndexError):
        pass
    board = Path("/proc/device-tree/model")
    return (board.read_text(errors="replace").strip("\x00\n ") if board.exists() else "NVIDIA GPU"), 0.0


def _processor() -> str:
    if sys.platform == "darwin":
        asked = subprocess.run(
            ["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True, check=False
        )
        if asked.stdout.strip():
            return asked.stdout.strip()
    about = Path("/proc/cpuinfo")
    for line in about.read_text(errors="replace").splitlines() if about.exists() else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
