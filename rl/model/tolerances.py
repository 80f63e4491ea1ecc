"""What a model is tried with, and how far two ways to compute the same may be apart."""

import torch
from torch import Tensor

from rl.model.head import attention_of, hidden_states
from rl.model.memory import is_out_of_memory
from rl.model.policy import Policy

TEXT = "How many apples are 7 apples and 15 more apples?"
LENGTHS = (3, 7)  # of the prompts made of it, in tokens
# nats: of the worst token in float32; of the mean over tokens in half precision, where single ones say little
TOLERANCES = {torch.float32: 1e-3, torch.bfloat16: 0.1, torch.float16: 0.02}


def states_apart(found: Tensor, expected: Tensor) -> float:
    """The largest distance of hidden states, in parts of the largest of those that are expected."""
    return float((found.detach() - expected).abs().max() / expected.abs().max())


def states_tolerance(dtype: torch.dtype) -> float:
    """What that may be, if they are computed in ``dtype``."""
    return 1e-3 if dtype in (torch.float32, torch.float64) else 5e-2


@torch.no_grad()
def needs_no_mask(policy: Policy) -> bool:
    """Whether attention is causal without a mask, by trying it: PyTorch's on a processor passes over what nobody sees
    then. Of other devices it was not measured."""
    if policy.device.type != "cpu" or attention_of(policy.model) != "sdpa":
        return False
    at = torch.arange(8)
    inputs = {"input_ids": at[None] + policy.text.vocab_size // 2, "position_ids": at[None], "use_cache": False}
    try:
        with policy.autocast():
            without, masked = (
                hidden_states(policy.model, mask=mask, **inputs) for mask in (None, (at[:, None] >= at)[None, None])
            )
    except (AttributeError, RuntimeError, TypeError, ValueError) as error:
        if is_out_of_memory(error):
            raise
        return False
    return states_apart(without, masked) <= states_tolerance(policy.dtype)
