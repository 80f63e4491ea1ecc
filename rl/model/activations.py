"""Activations: what a forward pass keeps for the backward pass, and takes beside it; checkpointing of layers."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from rl.model.head import hidden_states, shared_mask
from rl.model.policy import Policy
from rl.model.products import in_slices
from rl.model.scores import ROWS, fast_chunk

LOGIT_BYTES = 8  # with its gradient, both in float32


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
