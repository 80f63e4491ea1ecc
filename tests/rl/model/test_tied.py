"""Weights of several names."""

from collections.abc import Callable

import pytest
from transformers import PreTrainedModel

from rl.model.skeleton import on_meta
from rl.model.tied import named_weights


@pytest.mark.parametrize(
    ("name", "others"), [("qwen3", {"lm_head.weight"}), ("llama", set()), ("gpt2", {"lm_head.weight"})]
)
def test_a_weight_of_two_names_has_the_first(
    name: str, others: set[str], build_small: Callable[..., PreTrainedModel]
) -> None:
    model = build_small(name)
    for each in (model, on_meta(model.config)):
        found = named_weights(each)
        assert each.state_dict().keys() - found.keys() == others
        assert {id(one) for one in each.parameters()} <= {id(one) for one in found.values()}
