"""The pace of this worker and what it waits for, sent to the scheduler with every heartbeat.

`scheduler identity["workers"][address]["metrics"]["rlvf"]` is what `report` returns; `rlvf status` reads it there.
"""

import threading
from collections import deque
from typing import Any

from distributed import Worker, get_worker

from infra.cluster.machine import detect_device, machine_name, this_machine, versions
from infra.cluster.placement import DEVICES, METRIC
from infra.storage.retry_policy import waits

RECENT = 16  # leases that the pace is taken from

_recent: deque[tuple[int, float]] = deque(maxlen=RECENT)  # (tokens, seconds)
_lock = threading.Lock()


def note(tokens: int, seconds: float) -> None:
    """Record a lease of so many tokens and seconds; from now on a Dask worker's heartbeats carry its pace."""
    with _lock:
        _recent.append((tokens, seconds))
    try:
        worker = get_worker()
    except ValueError:  # not in a worker: a test, a notebook
        return
    worker.metrics.setdefault(METRIC, report)


def tokens_per_second() -> float | None:
    """The pace over the last leases; None before the first."""
    with _lock:
        tokens, seconds = (sum(column) for column in zip(*_recent, strict=True)) if _recent else (0, 0.0)
    return round(tokens / seconds, 1) if seconds > 0 else None


def report(worker: Worker) -> dict[str, Any]:
    """The metric of a Dask worker: its device, pace, versions, and the storage it waits for."""
    tags = worker.state.total_resources
    machine = this_machine(next((tag for tag in DEVICES if tag in tags), detect_device()))
    return {
        "tokens_per_second": tokens_per_second(),
        "device": machine.name,
        "memory_gb": machine.memory_gb,
        "cores": machine.cores,
        "machine": machine_name(),
        "versions": versions(),
        "waits": waits(),
    }
