"""The choice of tokens on a processor: `choose.c`, compiled on the machine itself.

`rl.sampling.decoding.chosen` is the same in tensors, which takes three times as long. In float32 alone.

Legend: B sequences, V vocabulary.
"""

from pathlib import Path

import torch
from torch import Tensor

from rl.model.compiled import ADDRESS, NUMBER, bounds, compiled, in_parts

SOURCE = Path(__file__).with_name("choose.c")
ROWS = 16  # of a thread, at least
NATS = 1e-5  # that a log-prob may be apart from that in float64


class Choice:
    """The compiled function, once it was tried."""

    def __init__(self) -> None:
        """Raises what `compiled` raises, and ValueError where what was compiled chooses otherwise than it is to."""
        self._choose = compiled(SOURCE).choose
        self._choose.argtypes = (NUMBER, NUMBER, NUMBER, ADDRESS, ADDRESS, ADDRESS, ADDRESS)
        draws = torch.Generator().manual_seed(0)
        scores = 5 * torch.randn(20, 1003, generator=draws, dtype=torch.float32)
        uniform = torch.linspace(0, 0.99, 20, dtype=torch.float32)
        tokens, logprobs = self(scores, uniform)
        exact = scores.double().log_softmax(1)
        sums, own = exact.exp().cumsum(1).gather(1, tokens[:, None])[:, 0], exact.gather(1, tokens[:, None])[:, 0]
        if not ((own - logprobs).abs() < NATS).all():
            raise ValueError("what was compiled makes other log-probs")
        if not ((sums > uniform - NATS) & (sums - own.exp() < uniform + NATS)).all():
            raise ValueError("what was compiled chooses other tokens")

    def __call__(self, scores: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """[B] tokens and their log-probs, by scores [B, V] and uniform numbers [B]. Raises MemoryError where there is
        none for the weights of a row."""
        assert scores.dtype == uniform.dtype == torch.float32
        scores, uniform = scores.contiguous(), uniform.contiguous()
        tokens, logprobs = torch.empty(len(scores), dtype=torch.int64), torch.empty_like(uniform)
        held = scores, uniform, tokens, logprobs
        in_parts(self._choose, bounds(len(scores), ROWS), (scores.shape[1], *(each.data_ptr() for each in held)), held)
        return tokens, logprobs
