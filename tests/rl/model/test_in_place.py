"""Gradients that are added where they stand, beside autograd's own."""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from transformers import PreTrainedModel

from rl.model.head import hidden_states
from rl.model.in_place import embedding_in_place

TOKENS = torch.tensor([[0, 5, 5, 7], [7, 2, 0, 0]])  # 0 is the padding


@pytest.mark.parametrize("name", ["llama", "qwen3", "gpt2"])
def test_the_gradient_of_a_table_is_that_of_autograd(name: str, build_small: Callable[..., PreTrainedModel]) -> None:
    found = []
    for within in (nullcontext, embedding_in_place):
        model = build_small(name)
        table = model.get_input_embeddings()
        with within(model):
            for _ in range(2):  # the second is added to the first
                hidden_states(model, input_ids=TOKENS, use_cache=False).square().sum().backward()
        found.append(table.weight.grad)
    torch.testing.assert_close(*found)
    assert found[0][[5, 7]].all()
    assert found[0][0].any() == (table.padding_idx is None)
