"""What the benches measure with: a process of its own for each figure, the device's clock and its memory."""

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from pathlib import Path
from typing import ParamSpec, TypeVar

import psutil
import torch

P = ParamSpec("P")
R = TypeVar("R")

READ = 2**28  # float32 numbers that the bandwidth is measured with: 1 GiB, beyond any cache
READS = 5


def apart(work: Callable[P, R], *arguments: P.args, **named: P.kwargs) -> R | None:
    """What the work returns in a process of its own, which leaves nothing in this one's memory; None where the system
    ended that process, as one without memory does."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(work, *arguments, **named).result()
        except BrokenProcessPool:
            return None
        except KeyboardInterrupt:  # which a signal to this process alone is for it alone
            for child in multiprocessing.active_children():
                child.terminate()
            raise


def seconds_on(device: torch.device) -> float:
    """Processor time on a CPU, which other programs do not lengthen; else wall time, once the device is done."""
    if device.type == "cpu":
        return time.process_time()
    torch.accelerator.synchronize()
    return time.perf_counter()


def bandwidth(device: torch.device) -> float:
    """Bytes a second that one thread, or an accelerator, reads from memory: the fastest of several sums of 1 GiB."""
    torch.set_num_threads(1)
    numbers = torch.ones(READ, device=device)
    numbers.sum()
    fastest = float("inf")
    for _ in range(READS):
        began = seconds_on(device)
        numbers.sum()
        fastest = min(fastest, seconds_on(device) - began)
    return numbers.nbytes / fastest


def taken_bytes(device: torch.device) -> int:
    """Memory in use: of a CUDA device what tensors take, else what the process has."""
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    return int(psutil.Process().memory_info().rss)


def reset_peak(device: torch.device) -> None:
    """Forget the largest memory in use so far. Where the system (other than Linux) cannot, that of a process stands."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")  # proc(5)


def peak_bytes(device: torch.device) -> int:
    """The largest memory in use."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
