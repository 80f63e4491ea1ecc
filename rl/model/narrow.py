"""Frozen weights that are kept in a narrower type than the arithmetic's, and widened where they are used: in bfloat16 a
model takes half the memory, and float32 arithmetic on it is that of the same numbers kept in float32."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D


def compute_in(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Make a frozen model compute in ``dtype``, which holds all numbers of its own. Linear layers, tables and the
    stacked matrices of experts, which are nearly all of it, keep their weights as they are; all else is widened."""
    forwards = {
        module: forward for module in model.modules() if (forward := _narrow_forward(module, dtype)) is not None
    }
    stay = {
        id(weight) for module in forwards for weight in (*_stacks(module).values(), getattr(module, "weight", None))
    }
    stay -= {
        id(one) for module in model.modules() if module not in forwards for one in module.parameters(recurse=False)
    }
    for parameter in model.parameters():
        if parameter.is_floating_point() and id(parameter) not in stay:
            parameter.data = parameter.data.to(dtype)
    widen_buffers(model, dtype)
    for module, forward in forwards.items():
        module.forward = forward


def widen_buffers(model: PreTrainedModel, dtype: torch.dtype) -> None:
    """Buffers of ``dtype``: those that are stored with the model keep their numbers, those that are computed from its
    configuration (Gemma's `embed_scale`) are computed again, without the rounding of a model of a narrower type."""
    computed = dict(model.named_non_persistent_buffers())
    stored = {name: buffer for name, buffer in model.named_buffers() if name not in computed}
    for tensor in (*model.parameters(), *stored.values()):
        tensor._is_hf_initialized = True  # type: ignore[attr-defined]  # by which transformers leaves it alone
    for name, buffer in (stored | computed).items():
        if buffer.is_floating_point() and buffer.dtype.itemsize < dtype.itemsize:
            buffer.data = buffer.data.to(dtype)
            if name in computed:
                model.get_submodule(name.rpartition(".")[0])._is_hf_initialized = False  # type: ignore[assignment]
    model.initialize_weights()  # type: ignore[no-untyped-call]


def _narrow_forward(module: nn.Module, dtype: torch.dtype) -> Callable[..., Tensor] | None:
    """A forward pass on weights that are narrower than its input; None of a module whose weights are to be widened."""
    kind = type(module)
    if kind is nn.Linear or kind is Conv1D or kind.__name__ == "FalconLinear":
        return partial(_multiplied, module)
    if isinstance(module, nn.Embedding):
        plain = kind is nn.Embedding or kind.__name__.endswith("ScaledWordEmbedding")
        return partial(_looked_up, module, dtype) if plain and not module.max_norm else None
    return partial(_recomputed, partial(_widened, module, module.forward, dtype)) if _stacks(module) else None


def _stacks(module: nn.Module) -> dict[str, nn.Parameter]:
    """Matrices that are one tensor, those of experts above all."""
    return {name: one for name, one in module.named_parameters(recurse=False) if one.ndim == 3}


def _multiplied(module: Any, inputs: Tensor) -> Tensor:
    weight = module.weight.T if isinstance(module, Conv1D) else module.weight
    made: Tensor = _Product.apply(inputs, weight, module.bias)  # type: ignore[no-untyped-call]
    return made


def _looked_up(module: Any, dtype: torch.dtype, tokens: Tensor) -> Tensor:
    found = functional.embedding(tokens, module.weight).to(dtype)
    return found if type(module) is nn.Embedding else found * module.embed_scale


def _recomputed(forward: Callable[..., Tensor], *inputs: Any, **named: Any) -> Tensor:
    """Once more for the backward pass, which would keep the wide weights otherwise."""
    made: Tensor = checkpoint(forward, *inputs, use_reentrant=False, preserve_rng_state=False, **named)
    return made


def _widened(
    module: nn.Module, forward: Callable[..., Tensor], dtype: torch.dtype, *inputs: Any, **named: Any
) -> Tensor:
    narrow = _stacks(module)
    parameters: dict[str, Any] = module._parameters
    parameters.update({name: weight.to(dtype) for name, weight in narrow.items()})
    try:
        return forward(*inputs, **named)
    finally:
        parameters.update(narrow)


class _Product(torch.autograd.Function):
    """Widens the weight once more for the backward pass, which would keep the wide one otherwise."""

    @staticmethod
    def forward(ctx: Any, inputs: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(weight)
        return functional.linear(inputs, weight.to(inputs.dtype), bias if bias is None else bias.to(inputs.dtype))

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor, None, None]:
        (weight,) = ctx.saved_tensors
        return upstream[0] @ weight.to(upstream[0].dtype), None, None
