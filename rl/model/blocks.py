"""Attention of packed rows in blocks, by PyTorch's FlexAttention: a GPU passes over those in which nobody sees
anything, and there is no mask of L x L.

Legend: R rows, L positions in a row, H heads, D head size.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention
from transformers import AttentionInterface, PreTrainedModel

from rl.model.attention import attention_by
from rl.model.head import attention_of, hidden_states
from rl.model.memory import is_out_of_memory
from rl.model.policy import Policy
from rl.model.trial import states_apart, states_tolerance

NAME = "rlvf_blocks"
WIDTH = 128  # positions of a block


def dense_mask(segments: Tensor) -> Tensor:
    """[R, 1, L, L] bool: True where a query (third axis) sees a key (fourth), of rows whose positions [R, L] are of the
    prompt (0), of a completion (1 and up), or padding (-1), which sees itself alone."""
    query, key = segments[:, :, None], segments[:, None, :]
    at = torch.arange(segments.shape[1], device=segments.device)
    seen = (at[:, None] >= at) & (query >= 0) & ((key == query) | (key == 0)) | (at[:, None] == at)
    return seen[:, None]


def block_mask(segments: Tensor) -> BlockMask:
    """The same, by blocks of WIDTH x WIDTH."""

    def sees(row: Tensor, _: Tensor, at: Tensor, key_at: Tensor) -> Tensor:
        query, key = segments[row, at], segments[row, key_at]
        return (at >= key_at) & (query >= 0) & ((key == query) | (key == 0)) | (at == key_at)

    rows, length = segments.shape
    compiled = segments.device.type == "cuda"  # else L x L is made once
    return create_block_mask(sees, rows, None, length, length, device=segments.device, _compile=compiled)


@cache
def _kernel(kind: str) -> Any:
    """The function for a kind of device; compiled it is one kernel for all lengths, but some for each kind of layer. It
    fails if these are too many: what is not compiled makes all scores."""
    if kind != "cuda":
        return flex_attention
    options: dict[str, Any] = {
        "dynamic": True,
        "fullgraph": True,
        "recompile_limit": 64,
    }  # the last is not in the stubs
    return torch.compile(flex_attention, **options)


def attend(
    _: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: BlockMask,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """[R, L, H, D] of `query` [R, H, L, D] and keys and values of as many heads or fewer. Raises TypeError for what
    transformers' `sdpa` would do otherwise."""
    if not isinstance(attention_mask, BlockMask):
        raise TypeError("it has masks of its own")
    if any(others.get(name) is not None for name in ("position_bias", "softcap", "s_aux", "cache")):
        raise TypeError("its scores are not plain")
    grouped = query.shape[1] != key.shape[1]
    query, key = query.to(value.dtype), key.to(value.dtype)  # as autocast does for other attention
    found = _kernel(query.device.type)(query, key, value, block_mask=attention_mask, scale=scaling, enable_gqa=grouped)
    return found.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attend)


@contextmanager
def in_blocks(model: PreTrainedModel, mask: Tensor | BlockMask) -> Iterator[None]:
    """Inside, the model's attention is `attend` if the mask is of blocks; the backward pass belongs inside as well."""
    if isinstance(mask, BlockMask):
        with attention_by(model, NAME):
            yield
    else:
        yield


def refusal(policy: Policy) -> str:
    """Why the policy's attention is not to be computed in blocks, by trying it, backwards too; nothing where it may."""
    if attention_of(policy.model) != "sdpa":
        return "its attention is not the plain one"
    segments = torch.tensor([[0, 0, 1, 1, 2, 2, 2, -1]], device=policy.device)
    inputs = {"input_ids": segments.clamp(min=0), "position_ids": torch.arange(8, device=policy.device)[None]}
    try:
        with torch.no_grad(), policy.autocast():
            plain = hidden_states(policy.model, mask=dense_mask(segments), use_cache=False, **inputs)
        mask = block_mask(segments)
        with torch.enable_grad(), in_blocks(policy.model, mask):
            with policy.autocast():
                found = hidden_states(policy.model, mask=mask, use_cache=False, **inputs)
            parameters = [each for each in policy.model.parameters() if each.requires_grad]
            torch.autograd.grad(found.float().sum(), parameters, allow_unused=True)
    except (AttributeError, ImportError, RuntimeError, TypeError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        return str(error).strip().partition("\n")[0] or type(error).__name__
    apart = states_apart(found, plain)
    return "" if apart <= states_tolerance(policy.dtype) else f"its states are {apart:.1e} apart"
