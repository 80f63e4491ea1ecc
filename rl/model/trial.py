"""What a model is tried with, and how far two ways to compute the same may be apart."""

import torch
from torch import Tensor

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
