"""The types of a model's weights when it is rounded: what transformers keeps wide stays float32."""

from collections.abc import Callable

import torch
from torch import nn

Types = Callable[[str], torch.dtype]  # of floating point weights, by name


def rounded(model: nn.Module, dtype: torch.dtype) -> Types:
    """Those of a model that transformers loads in ``dtype``. For int8, float32 is what is not to be quantised."""
    kept = ["_keep_in_fp32_modules_strict"] if dtype in (torch.float16, torch.bfloat16, torch.int8) else []
    kept += ["_keep_in_fp32_modules"] if dtype == torch.float16 else []
    wide = {part for names in kept for part in getattr(model, names, None) or ()}
    return lambda name: torch.float32 if any(part in name for part in wide) else dtype


def all_in(dtype: torch.dtype) -> Types:
    """One for all weights."""
    return lambda _: dtype
