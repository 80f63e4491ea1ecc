"""The memory of a device, and what a forward pass keeps of it for the backward pass."""

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import psutil
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from rl.model.control_group import group_bytes
from rl.model.head import hidden_states, shared_mask
from rl.model.policy import Policy
from rl.model.products import in_slices
from rl.model.scores import ROWS, fast_chunk

DEVICE_PROCESSES = "RLVF_DEVICE_PROCESSES"  # in the environment: how many compute on the device of this one

ALLOCATORS_SAY = ("out of memory", "can't allocate memory", "not enough memory", "bad_alloc", "bad allocation")
ONEDNN_SAYS = ("could not create a primitive", "could not create a memory object", "could not execute a primitive")

MMAP_THRESHOLD = -3  # of mallopt(3)
OF_ITS_OWN = 2**18  # bytes

LOGIT_BYTES = 8  # with its gradient, both in float32


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


def checkpointed_layers(model: PreTrainedModel) -> list[nn.Module]:
    """The layers that `checkpointed` computes twice."""
    decoder: nn.Module = model.get_decoder()  # type: ignore[no-untyped-call]
    return [module for module in decoder.modules() if isinstance(module, GradientCheckpointingLayer)]


@contextmanager
def checkpointed(model: PreTrainedModel) -> Iterator[None]:
    """Inside, a forward pass keeps what goes into each layer, and the backward pass computes the layer again (Chen et
    al., arXiv 1604.06174). transformers' own switch works in training mode alone, which has dropout."""
    layers = checkpointed_layers(model)
    for layer in layers:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False, preserve_rng_state=False)
    try:
        yield
    finally:
        for layer in layers:
            del layer.forward


def kept_bytes(policy: Policy, **inputs: Tensor) -> int:
    """What the decoder keeps of a pass of these inputs for the backward pass, weights left out."""
    weights = {parameter.untyped_storage()._cdata for parameter in policy.model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()  # which has no address on the meta device
        if storage._cdata not in weights:
            kept[storage._cdata] = storage.nbytes()
        return tensor.detach()  # what an operation made holds that operation, which would hold it for good

    with torch.enable_grad(), policy.autocast(), torch.autograd.graph.saved_tensors_hooks(keep, lambda same: same):
        hidden_states(policy.model, **inputs, use_cache=False)
    return max(0, sum(kept.values()) - cast_bytes(policy))


def kept_of_row(policy: Policy, length: int) -> float:
    """Bytes that a pass of one row of that length keeps of each of its positions for the backward pass."""
    at = torch.arange(length, device=policy.device)
    mask = shared_mask(policy.model, (at[:, None] >= at)[None, None], policy.dtype)
    return kept_bytes(policy, mask=mask, input_ids=torch.zeros_like(at)[None], position_ids=at[None]) / length


def kept_by_position(policy: Policy, measured: int) -> tuple[float, float]:
    """Bytes that a pass keeps of a position for the backward pass, and how many more for each position of its row.

    Attention may keep what grows with the square of a length: transformers' own its weights, PyTorch's a mask. So rows
    of `measured` positions and of half as many are passed, and what is kept of a position taken to grow as it does
    between them.
    """
    half = measured // 2
    at_half, kept = (kept_of_row(policy, length) for length in (half, measured))
    growth = max(0.0, kept - at_half) / (measured - half)
    return kept - growth * measured, growth


def checkpointed_bytes(policy: Policy, kept: float) -> float:
    """What a pass keeps of a position with checkpointing, if it keeps so much without: what goes into each layer, and
    one layer whole."""
    layers, size = max(1, len(checkpointed_layers(policy.model))), int(policy.text.hidden_size)
    return kept / layers + layers * size * policy.dtype.itemsize


def passing_bytes(policy: Policy, positions: int, device: torch.device | None = None, chunk: int | None = None) -> int:
    """What a pass of so many positions takes beside what it keeps of them: copies of weights, and the logits of a
    ``chunk`` of tokens. On a ``device``, by default the policy's."""
    copies = cast_bytes(policy) + copy_bytes(policy, device or policy.device)
    return copies + LOGIT_BYTES * policy.outputs * min(positions, fast_chunk(policy.outputs), chunk or positions)


def chunk_within(policy: Policy, positions: int, room: float) -> int | None:
    """How many tokens of a pass may have logits at once, if those may take a quarter of so much room; None where it
    allows for as many as are fast."""
    allowed = int(room / 4 / (LOGIT_BYTES * policy.outputs))
    # values and rewards have none
    fewer = policy.outputs > 1 and allowed < min(positions, fast_chunk(policy.outputs))
    return max(ROWS, allowed) if fewer else None


def cast_bytes(policy: Policy) -> int:
    """Bytes of the copies of matrices that autocast makes for a pass."""
    if policy.dtype == torch.float32:
        return 0
    decoder: nn.Module = policy.model.get_decoder()  # type: ignore[no-untyped-call]
    return sum(
        module.weight.numel() * policy.dtype.itemsize
        for module in decoder.modules()
        if isinstance(module, nn.Linear) and module.weight.dtype != policy.dtype
    )


def copy_bytes(policy: Policy, device: torch.device) -> int:
    """Bytes of the largest copy in the type of the arithmetic that is made of a module's own weights and dropped again:
    of the head's where they are of another type and not taken in slices, of others where they are kept narrower."""
    head = policy.model.get_output_embeddings()  # type: ignore[no-untyped-call]
    sliced = type(head) is nn.Linear and in_slices(policy.dtype, device)

    def copied(module: nn.Module) -> int:
        if module is head and sliced:
            return 0
        own = [one for one in module.parameters(recurse=False) if one.is_floating_point()]
        other = [one for one in own if one.dtype.itemsize < policy.dtype.itemsize or module is head]
        return sum(one.numel() for one in other if one.dtype != policy.dtype) * policy.dtype.itemsize

    return max(copied(module) for module in policy.model.modules() if not isinstance(module, nn.Embedding))
