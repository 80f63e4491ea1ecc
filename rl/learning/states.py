"""The hidden states that predict the tokens of packed completions.

Legend: N completion tokens, H hidden size.
"""

from contextlib import nullcontext

import torch
from torch import Tensor

from rl.learning.packing import Packed
from rl.model.activations import checkpointed
from rl.model.head import hidden_states
from rl.model.in_place import embedding_in_place
from rl.model.policy import Policy


def predicting_states(
    policy: Policy, packed: Packed, *, trained: bool, checkpointing: bool = False, positions: Tensor | None = None
) -> Tensor:
    """[N, H] of each completion token the state before it, or at these ``positions`` [N]; with a gradient where it is
    ``trained``. For inside of `rl.model.blocks.in_blocks`, and so is the backward pass; see `checkpointed` for
    ``checkpointing``."""
    layers = checkpointed(policy.model) if checkpointing else nullcontext()
    with policy.autocast(), torch.set_grad_enabled(trained), embedding_in_place(policy.model), layers:
        states = hidden_states(
            policy.model, mask=packed.mask, input_ids=packed.tokens, position_ids=packed.positions, use_cache=False
        )
        return states[packed.rows, packed.logit_positions if positions is None else positions]
