"""Weights in 8 bits: a scale for every row. Half the bytes of bfloat16, and not what the trainer has."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

SCALE = ":scale"  # ends the name of a scale's tensor
LEVELS = 127


def quantized(weights: Mapping[str, Tensor], wide: Callable[[str], bool] = lambda _: False) -> dict[str, Tensor]:
    """Matrices [rows, ...] as int8 with a float32 scale [rows]; vectors, which are few, and what is
    ``wide`` as float32."""
    made = {}
    for name, tensor in weights.items():
        if not tensor.is_floating_point():
            made[name] = tensor.detach().to("cpu", copy=True).contiguous()
        elif tensor.dim() < 2 or wide(name):
            made[name] = tensor.detach().to("cpu", torch.float32, copy=True).contiguous()
        else:
            rows = tensor.detach().float().flatten(1)
            scale = rows.abs().amax(1).clamp_min(torch.finfo(torch.float32).tiny) / LEVELS
            made[name] = (rows / scale[:, None]).round_().to("cpu", torch.int8).view(tensor.shape).contiguous()
            made[name + SCALE] = scale.cpu()
    return made


def restored(weights: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """The weights as a model loads them: matrices that have a scale as float32, all else as it is."""
    if not any(name.endswith(SCALE) for name in weights):
        return weights
    return {
        name: _scaled(tensor, weights[name + SCALE]) if name + SCALE in weights else tensor
        for name, tensor in weights.items()
        if not name.endswith(SCALE)
    }


def _scaled(tensor: Tensor, scale: Tensor) -> Tensor:
    return (tensor.float().flatten(1) * scale[:, None]).view(tensor.shape)
