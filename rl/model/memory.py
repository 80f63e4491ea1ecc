"""The memory of a device: what is free of it, and what is said where it is short."""

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import psutil
import torch

from rl.model.control_group import group_bytes
from rl.model.policy import Policy

DEVICE_PROCESSES = "RLVF_DEVICE_PROCESSES"  # in the environment: how many compute on the device of this one

ALLOCATORS_SAY = (
    *("out of memory", "can't allocate memory", "not enough memory", "bad_alloc", "bad allocation"),
    *("CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED"),
)
ONEDNN_SAYS = ("could not create a primitive", "could not create a memory object", "could not execute a primitive")

MMAP_THRESHOLD = -3  # of mallopt(3)
OF_ITS_OWN = 2**18  # bytes


class NoRoomError(RuntimeError):
    """What does not fit into a device's memory, even with one sequence at a time."""


def free_bytes(device: torch.device) -> int:
    """Memory that this process can still take."""
    if device.type == "cuda":
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + idle
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
    return int(min(psutil.virtual_memory().available, max(0, group_bytes())))


def sharing() -> int:
    """How many processes compute on this one's device, itself included, as far as it was told."""
    return int(os.environ.get(DEVICE_PROCESSES, "1"))


def spare_bytes(device: torch.device, taken: float = 0, processes: int | None = None) -> float:
    """The part of it that may be counted on once `taken` bytes are: the same for each of the `processes` that compute
    there, and half at most elsewhere than on CUDA, where other programs use the same memory."""
    share = 0.8 / (processes or sharing())
    return (share if device.type == "cuda" else min(share, 0.5)) * (free_bytes(device) - taken)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory was lacking: only CUDA has a type for that. oneDNN, which multiplies on CPUs, names no reason but
    only what it was about; of what it cannot do at all it could not create "a primitive descriptor"."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    said = str(error)
    return isinstance(error, RuntimeError) and (said in ONEDNN_SAYS or any(part in said for part in ALLOCATORS_SAY))


def less_memory(policy: Policy) -> tuple[str, ...]:
    """The options by which training this policy takes less, whatever the sequences."""
    if policy.base is not None:
        wide = policy.base.dtype == "float32"
        return ("policy.lora.base bfloat16",) if wide else ()
    # a critic has no adapters
    return ("policy.lora 16",) if policy.outputs > 1 else ()


def one_of(options: Sequence[str]) -> str:
    """As words: a, b or c."""
    *others, last = options
    return f"{', '.join(others)} or {last}" if others else last


@contextmanager
def room_for(what: str, device: torch.device, helps: Sequence[str] = ()) -> Iterator[None]:
    """Raise NoRoomError where the device has no memory for this; `helps`: options beside a smaller model."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        options = (*helps, "a smaller policy.model")
        raise NoRoomError(f"{what} does not fit into the memory of {device}: give {one_of(options)}") from error


def release(device: torch.device) -> None:
    """Give back what PyTorch keeps for later tensors."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


def yield_memory(device: torch.device) -> None:
    """Give it back where others compute on the device."""
    if sharing() > 1:
        release(device)


def reserve(count: int, device: torch.device) -> None:
    """Have PyTorch keep so many bytes for what is made later, where others compute on a GPU and would take them: they
    ask what is free. Raises NoRoomError."""
    if device.type == "cuda" and sharing() > 1:
        with room_for(f"what an update keeps ({count / 1e9:.1f} GB)", device):
            torch.empty(count, dtype=torch.uint8, device=device)


def return_freed() -> None:
    """Have glibc give tensors' memory back to the system when they are freed, by a mapping of its own for each. It
    keeps what it thinks is used again, between what still is, and a pass of a large model takes twice as much; for
    small models mappings cost more than they save."""
    if sys.platform == "linux" and (mallopt := getattr(ctypes.CDLL(None), "mallopt", None)) is not None:
        mallopt(MMAP_THRESHOLD, OF_ITS_OWN)
