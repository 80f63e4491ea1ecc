"""Attention of packed rows in blocks, by PyTorch's FlexAttention: a GPU passes over those in which nobody sees
anything, and there is no mask of L x L. All rows of a pass are one row then: a kernel is compiled for one row, and for
several, and that takes a while.

Legend: R rows, L positions in a row, H heads, D head size.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask, flex_attention
from transformers import AttentionInterface, PreTrainedModel

from rl.model.attention import attention_by, plain
from rl.model.head import attention_of, hidden_states
from rl.model.memory import is_out_of_memory
from rl.model.policy import Policy
from rl.model.tolerances import states_apart, states_tolerance

NAME = "rlvf_blocks"
WIDTH = 128  # positions of a block
FEWEST = 2  # blocks of a row: for a single one there would be another kernel
KERNELS = 64  # of a process at most


class Run(NamedTuple):
    """Positions of a row that are one prompt or one completion."""

    start: int
    end: int  # exclusive
    prompt: int  # the number among the runs of that behind which it is; its own of a prompt


def dense_mask(segments: Tensor) -> Tensor:
    """[R, 1, L, L] bool: True where a query (third axis) sees a key (fourth), of rows whose positions [R, L] are of the
    prompt (0), of a completion (1 and up), or padding (-1), which sees itself alone."""
    query, key = segments[:, :, None], segments[:, None, :]
    at = torch.arange(segments.shape[1], device=segments.device)
    seen = (at[:, None] >= at) & (query >= 0) & ((key == query) | (key == 0)) | (at[:, None] == at)
    return seen[:, None]


def block_mask(runs: Sequence[Run], length: int, device: torch.device) -> BlockMask:
    """The same of one row of `length` positions, by blocks of WIDTH x WIDTH: who sees what follows from the runs alone.
    Blocks of which each position sees each are marked, as the kernel asks nothing about them."""
    if length % WIDTH:
        raise ValueError(f"{length} positions are no whole blocks of {WIDTH}")
    own = -1 - np.arange(length)
    prompt = own.copy()
    seen = np.eye(length // WIDTH, dtype=bool)
    whole = np.zeros_like(seen)
    for number, run in enumerate(runs):
        own[run.start : run.end] = number
        prompt[run.start : run.end] = run.prompt
        for key in (run, runs[run.prompt]):
            seen[_touched(run), _touched(key)] = True
            whole[_filled(run), _filled(key)] = True
    seen, whole = np.tril(seen), np.tril(whole, -1)
    own_of, prompt_of = (torch.from_numpy(each).to(device) for each in (own, prompt))

    def sees(_: Tensor, __: Tensor, at: Tensor, key_at: Tensor) -> Tensor:
        key = own_of[key_at]
        return (at >= key_at) & ((key == own_of[at]) | (key == prompt_of[at]))

    def listed(blocks: NDArray[np.bool_]) -> tuple[Tensor, Tensor]:
        order = np.argsort(~blocks, axis=1, kind="stable")[None, None].astype(np.int32)
        counts = blocks.sum(1)[None, None].astype(np.int32)
        return torch.from_numpy(counts).to(device), torch.from_numpy(order).to(device)

    asked, full = listed(seen & ~whole), listed(whole)
    return BlockMask.from_kv_blocks(*asked, *full, WIDTH, sees, (length, length))


def _touched(run: Run) -> slice:
    """The blocks in which it has positions."""
    return slice(run.start // WIDTH, -(-run.end // WIDTH))


def _filled(run: Run) -> slice:
    """The blocks that are its own alone."""
    return slice(-(-run.start // WIDTH), run.end // WIDTH)


@cache
def _kernel(kind: str) -> Any:
    """The function for a kind of device; compiled it is one kernel for all lengths, but some for each kind of layer. It
    fails if these are too many: what is not compiled makes all scores."""
    if kind != "cuda":
        return flex_attention
    settings: Any = torch._dynamo.config  # torch.compile takes the limit from 2.12 on alone
    settings.recompile_limit = max(settings.recompile_limit, KERNELS)
    return torch.compile(flex_attention, dynamic=True, fullgraph=True)


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
    if not plain(others):
        raise TypeError("its scores are not plain")
    grouped = query.shape[1] != key.shape[1]
    query, key = query.to(value.dtype), key.to(value.dtype)  # as autocast does for other attention
    found = _kernel(query.device.type)(query, key, value, block_mask=attention_mask, scale=scaling, enable_gqa=grouped)
    return found.transpose(1, 2).contiguous(), None


AttentionInterface.register(NAME, attend)


@contextmanager
def in_blocks(model: PreTrainedModel, mask: Tensor | BlockMask | None) -> Iterator[None]:
    """Inside, the model's attention is `attend` if the mask is of blocks; the backward pass belongs inside as well."""
    if isinstance(mask, BlockMask):
        with attention_by(model, NAME):
            yield
    else:
        yield


def block_refusal(policy: Policy) -> str:
    """Why the policy's attention is not to be computed in blocks, by trying it, backwards too; nothing where it may."""
    if attention_of(policy.model) != "sdpa":
        return "its attention is not the plain one"
    text = policy.text
    heads = {getattr(text, name, None) for name in ("num_attention_heads", "num_key_value_heads")}
    # the kernel is that of the updates: of one that is compiled for as many blocks as heads, both stay the same
    length = WIDTH * next(count for count in range(FEWEST + 1, FEWEST + 4) if count not in heads)
    runs = [Run(0, 3, 0), Run(3, 9, 0), Run(9, length - 1, 0)]
    segments = torch.full((1, length), -1, device=policy.device)
    for number, run in enumerate(runs):
        segments[0, run.start : run.end] = number
    at = torch.arange(length, device=policy.device)[None] % 8  # positions that every model has
    inputs = {"input_ids": segments.clamp(min=0) + at, "position_ids": at}
    try:
        with torch.no_grad(), policy.autocast():
            plain = hidden_states(policy.model, mask=dense_mask(segments), use_cache=False, **inputs)
        mask = block_mask(runs, length, policy.device)
        with torch.enable_grad(), in_blocks(policy.model, mask):
            with policy.autocast():
                found = hidden_states(policy.model, mask=mask, use_cache=False, **inputs)
            parameters = [each for each in policy.model.parameters() if each.requires_grad]
            if parameters:  # a reward model's are frozen
                torch.autograd.grad(found.float().sum(), parameters, allow_unused=True)
    except (AttributeError, ImportError, RuntimeError, TypeError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        return str(error).strip().partition("\n")[0] or type(error).__name__
    apart = states_apart(found, plain)
    return "" if apart <= states_tolerance(policy.dtype) else f"its states are {apart:.1e} apart"
