"""How many bytes of models a process keeps at a time on a device."""

import os

from infra.cluster.machine import GB
from infra.cluster.settings import DEVICE_PROCESSES, MODELS_GB

MACHINE = "cpu"  # the machine's own memory, as PyTorch names its device
SHARE = 0.8  # of a memory; the rest is for the work, and for what else is there


def budget(device: str, total: int) -> float:
    """Bytes of models that this process keeps on a device (cuda, mps, cpu) of ``total`` bytes: as the environment says
    (`MODELS_GB`), or `SHARE` of them, divided among the processes that compute there. The machine's own ``total`` is
    not asked: a container, a job or Dask may give this process less.

    Raises ValueError where the environment holds no number of GB."""
    name = MODELS_GB + device.upper()
    if given := os.environ.get(name):
        try:
            gigabytes = float(given)
        except ValueError:
            gigabytes = 0.0
        if not gigabytes > 0:
            raise ValueError(f"{name}={given}: give a number of GB above 0, or leave it out")
        return gigabytes * GB
    processes = int(os.environ.get(DEVICE_PROCESSES, "1"))
    return SHARE * (_own_bytes(processes) if device == MACHINE else total / processes)


def _own_bytes(processes: int) -> float:
    """The part of the machine's memory that is this process's, if so many compute."""
    from distributed import get_worker
    from distributed.system import MEMORY_LIMIT

    try:
        limit = get_worker().memory_manager.memory_limit
    except ValueError:  # no worker
        limit = None
    return float(limit or MEMORY_LIMIT / processes)
