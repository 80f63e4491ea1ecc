"""Products with a head of 16 bits that are added up in float32.

Legend: N selected positions, H hidden size, V vocabulary.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from rl.model.processor import fast_at_bfloat16

NARROW = (torch.bfloat16, torch.float16)
AT_ONCE = ("cuda",)  # devices that multiply a whole head of 16 bits
# numbers of a head at most that are widened at a time: they stay in a processor's cache; on a GPU 64 MiB in float32,
# beside which the start of a product is nothing
CPU_SLICE, GPU_SLICE = 2**21, 2**24
_setting = threading.Lock()


def wide_product(hidden: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """[N, V] in float32 from hidden states [N, H] of 16 bits and a head [V, H], which is rounded to the same type:
    logits that were rounded, too, would put sampler and learner as far apart as all layers do (MiniMax-M1, arXiv
    2506.13585, section 3.2)."""
    if hidden.device.type == "cuda":
        scores = torch.mm(hidden, weight.to(hidden.dtype).T, out_dtype=torch.float32)
    else:  # no such product: a slice at a time is widened
        scores = hidden.new_empty((len(hidden), len(weight)), dtype=torch.float32)
        with widened(hidden.dtype, hidden.device):
            float_hidden = hidden.float()
            for part in slices(weight):
                scores[:, part] = float_hidden @ weight[part].to(hidden.dtype).float().T
    return scores if bias is None else scores.add_(bias)


def in_slices(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a head in arithmetic of this type is taken slice by slice; else it is copied where it is of another."""
    return dtype in NARROW and device.type not in AT_ONCE


def gradient_type(dtype: torch.dtype, device: torch.device) -> torch.dtype:
    """That of what a head of this arithmetic is multiplied with in the backward pass, and of the products, which are
    added up in float32. A processor that multiplies bfloat16 fast, but without AMX, does not where sums are not to be
    rounded: it has gradients from rounded ones, as a GPU does."""
    if device.type == "cpu" and dtype == torch.bfloat16 and not torch.cpu._is_amx_tile_supported():
        return dtype if fast_at_bfloat16() else torch.float32
    return torch.float32


def slices(weight: Tensor) -> Iterator[slice]:
    """Of the rows of a head [V, H], to be widened one after the other."""
    rows = max(1, (CPU_SLICE if weight.device.type == "cpu" else GPU_SLICE) // weight.shape[1])
    return (slice(at, at + rows) for at in range(0, len(weight), rows))


@contextmanager
def widened(dtype: torch.dtype, device: torch.device) -> Iterator[None]:
    """Inside, autocast is off; for bfloat16 on a CPU that is fast at it, this process multiplies float32 numbers
    rounded to bfloat16, and adds up in float32: exact where both factors are numbers of bfloat16. Another
    thread's float32 products would be rounded, too: a worker has one thread that computes."""
    matmul: Any = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    with torch.autocast(device.type, enabled=False):
        if device.type != "cpu" or dtype != torch.bfloat16 or not fast_at_bfloat16():
            yield
            return
        with _setting:
            before, matmul.fp32_precision = matmul.fp32_precision, "bf16"
            try:
                yield
            finally:
                matmul.fp32_precision = before
