"""The weights of a model, of which some have several names."""

from torch import Tensor, nn


def named_weights(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers of the state dict, each by the first of its names (embeddings may be the head, too):
    known by what they are, because on the meta device nothing has an address."""
    first: dict[int, tuple[str, Tensor]] = {}
    for name, value in model.state_dict(keep_vars=True).items():
        first.setdefault(id(value), (name, value))
    return dict(first.values())
