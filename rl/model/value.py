"""A value model: the decoder of a language model, and a scalar in place of its logits.

Legend: N tokens, H hidden size.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from rl.model.policy import Policy


@dataclass(frozen=True)
class ValueModel(Policy):
    """The model of a policy whose head is a scalar one; tokenizer, device and arithmetic are the policy's. All of it is
    trained, whatever adapters the policy has."""

    @property
    def outputs(self) -> int:
        return 1

    def values(self, hidden: Tensor) -> Tensor:
        """[N] the value of the states of which these are the decoder's hidden states [N, H]; in float32, of a model in
        float64 in float64."""
        wide = torch.float64 if hidden.dtype == torch.float64 else torch.float32
        head: nn.Linear = self.model.get_output_embeddings()  # type: ignore[no-untyped-call]
        with torch.autocast(hidden.device.type, enabled=False):
            return linear(hidden.to(wide), head.weight.to(wide), head.bias.to(wide)).squeeze(-1)


def value_model(policy: Policy) -> ValueModel:
    """A value model of this policy's model, which is the caller's: its head is replaced. Every value is 0 at first."""
    assert policy.base is None  # adapters are a policy's
    weight: Tensor = policy.model.get_output_embeddings().weight  # type: ignore[no-untyped-call]
    head = nn.Linear(weight.shape[1], 1, device=weight.device, dtype=weight.dtype)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    policy.model.set_output_embeddings(head)  # type: ignore[no-untyped-call]
    return ValueModel(policy.model, policy.tokenizer, policy.device, policy.dtype)
