"""Value models as they are saved and published."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from rl.config import PolicyConfig
from rl.loading.policy import load_policy
from rl.model.policy import read_weights
from rl.model.skeleton import on_meta, settings_of
from rl.model.tied import named_weights
from rl.model.value import ValueModel, value_model


def load_value_model(
    path: str, config: PolicyConfig, *, weights: Mapping[str, Tensor] | None = None, master: bool = False
) -> ValueModel:
    """The value model in a folder that `save_policy` wrote, or with these ``weights`` in place of those there; the rest
    is as in `load_policy`.

    Raises:
        UnknownModelError: its files are not of a model that transformers can make.
        ValueError: the weights are of another model.
        NoRoomError: it does not fit into the device's memory.
    """
    own = read_weights(Path(path)) if weights is None else weights
    plain = on_meta(settings_of(path))
    own_head: nn.Module = plain.get_output_embeddings()  # type: ignore[no-untyped-call]
    head = {id(each) for each in own_head.parameters()}
    expected = named_weights(plain)
    # transformers makes the model with its own head, which is replaced
    lacking = {name: torch.zeros(value.shape) for name, value in expected.items() if id(value) in head}
    decoder = {name: value for name, value in own.items() if name in expected and name not in lacking}
    model = value_model(load_policy(path, config.whole, weights={**lacking, **decoder}, master=master, check=False))
    model.load_weights(own)
    return model
