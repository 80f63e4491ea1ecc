"""Gradients that are added to those of a parameter where they stand: for a second tensor of the size of an embedding
table there is often no room.

Legend: V vocabulary, H hidden size.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding
from transformers import PreTrainedModel


def gradient_of(parameter: Tensor) -> Tensor:
    """The gradient, zeros where there is none yet."""
    if parameter.grad is None:
        parameter.grad = torch.zeros_like(parameter)
    return parameter.grad


@contextmanager
def embedding_in_place(model: PreTrainedModel) -> Iterator[None]:
    """Inside, the backward pass adds the rows of the tokens that were looked up to the gradient of the model's table,
    instead of making a gradient [V, H] first. Tables that do more than look up are left as they are."""
    table = model.get_input_embeddings()
    plain = type(table) is nn.Embedding and not (table.max_norm or table.scale_grad_by_freq or table.sparse)
    if not plain or not table.weight.requires_grad:
        yield
        return
    table.forward = partial(_LookUp.apply, table.weight, table.padding_idx)
    try:
        yield
    finally:
        del table.forward


class _LookUp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, table: Tensor, padding: int | None, tokens: Tensor) -> Tensor:
        ctx.save_for_backward(tokens)
        ctx.table, ctx.padding = table, padding
        return embedding(tokens, table)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[None, None, None]:
        (tokens,) = ctx.saved_tensors
        found, place = tokens.unique(return_inverse=True)
        padding = -1 if ctx.padding is None else ctx.padding
        rows = torch.ops.aten.embedding_dense_backward(upstream[0], place, len(found), -1, False)
        rows[found == padding] = 0
        gradient_of(ctx.table).index_add_(0, found, rows.to(ctx.table.dtype))
        return None, None, None
