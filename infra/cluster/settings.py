"""Settings of Dask for every process of a cluster."""

import sys
from collections.abc import Mapping
from typing import Any

from infra.home import rlvf_home

STEADY = "infra.cluster.steady"  # a module that Dask imports, and whose `dask_setup` it calls
# Dask's profiler asks for the frames of all threads a hundred times a second; in Python 3.11 that can stop the process
# for ever when a garbage collection falls into it (python/cpython#106883, dask/distributed#8616).
WORKER_SETTINGS: Mapping[str, Any] = {
    "distributed.worker.profile.enabled": sys.version_info >= (3, 12),
    "distributed.admin.tick.interval": "500ms",  # every 20 ms is most of what an idle process takes
    "distributed.worker.http.routes": ["distributed.http.health"],  # the others need no password, and are not needed
    "distributed.worker.preload": [STEADY],
    "distributed.nanny.preload": [STEADY],
}
# For nannies in this process: Dask's defaults (one OpenMP thread, trim every 64 kB) are not for processes that
# compute.
NANNY_SETTINGS: Mapping[str, Any] = {"distributed.nanny.pre-spawn-environ": {}, **WORKER_SETTINGS}
# For the scheduler on which `infra.dispatch.dispatch` hands out the work, and for workers that Dask's own commands
# start.
DASK_SETTINGS = {
    **WORKER_SETTINGS,
    "distributed.scheduler.preload": [STEADY, "infra.services.dashboard"],
    "distributed.scheduler.allowed-failures": 0,  # a worker's death is known at once, and counted by the dispatch
    "distributed.scheduler.no-workers-timeout": "60s",
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.worker-ttl": "60s",  # for a machine whose lid was closed
    # its record of the last transitions, events and computations, which nobody here reads, is most of what it grows by
    "distributed.admin.low-level-log-length": 100,
    "distributed.diagnostics.computations.max-history": 5,
}

DEVICE_PROCESSES = "RLVF_DEVICE_PROCESSES"  # in a worker's environment: how many of the machine's compute on its device
MODELS_GB = (
    "RLVF_MODELS_GB_"  # and a device's tag, in the environment: GB of models that a process keeps at a time there
)
MEASURED = "RLVF_MEASURED"  # in the environment: the file that keeps what this machine's processor is measured to do
DASHBOARD_PORT = "RLVF_DASHBOARD_PORT"  # in the environment of a scheduler whose page others know to be there


def measured_file() -> str:
    """`MEASURED`, of this home."""
    return str(rlvf_home() / "cache" / "processor.json")


def dask_environment() -> dict[str, str]:
    """`DASK_SETTINGS` for the environment of `dask scheduler` and `dask worker`."""
    return {
        "DASK_" + name.replace(".", "__").replace("-", "_").upper(): str(value) for name, value in DASK_SETTINGS.items()
    }
