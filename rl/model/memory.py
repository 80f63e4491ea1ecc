"""The memory of a device, and what a forward pass keeps of it for the backward pass."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import psutil
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from rl.model.head import hidden_states
from rl.model.policy import Policy


class NoRoomError(RuntimeError):
    """What does not fit into a device's memory, even with one sequence at a time."""


def free_bytes(device: torch.device) -> int:
    """Memory that this process can still take."""
    if device.type == "cuda":
        idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
        return torch.cuda.mem_get_info(device)[0] + idle
    if device.type == "mps":
        return torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory()
    return int(psutil.virtual_memory().available)


def spare_bytes(device: torch.device) -> float:
    """The part of it that may be counted on: elsewhere than on CUDA other processes use the same memory."""
    return (0.8 if device.type == "cuda" else 0.5) * free_bytes(device)


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether a device had no memory for a tensor: only CUDA has a type for that."""
    said = str(error)
    return isinstance(error, torch.OutOfMemoryError) or "out of memory" in said or "can't allocate memory" in said


@contextmanager
def room_for(what: str, device: torch.device) -> Iterator[None]:
    """Raise NoRoomError where the device has no memory for this."""
    try:
        yield
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
        raise NoRoomError(f"{what} does not fit into the memory of {device}: take a smaller policy.model") from error


def release(device: torch.device) -> None:
    """Give back what PyTorch keeps for later tensors."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif device.type == "mps":
        torch.mps.empty_cache()


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
    weights = {parameter.untyped_storage().data_ptr() for parameter in policy.model.parameters()}
    kept: dict[int, int] = {}

    def keep(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            kept[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.enable_grad(), policy.autocast(), torch.autograd.graph.saved_tensors_hooks(keep, lambda same: same):
        hidden_states(policy.model, **inputs, use_cache=False)
    return max(0, sum(kept.values()) - cast_bytes(policy))


def cast_bytes(policy: Policy) -> int:
    """Bytes of the copies of matrices that autocast makes for a pass."""
    if policy.dtype == policy.model.dtype:
        return 0
    decoder: nn.Module = policy.model.get_decoder()  # type: ignore[no-untyped-call]
    return sum(
        module.weight.numel() * policy.dtype.itemsize for module in decoder.modules() if isinstance(module, nn.Linear)
    )
