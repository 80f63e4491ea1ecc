"""What ends a draw: the token that a uniform number chooses, and the texts behind which nothing is drawn.

Legend: B sequences, V vocabulary.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from rl.model.policy import Policy

# many tokenizers would take the blanks before punctuation out of a text, which is then not what was sampled
TO_THE_LETTER = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}


def choose(weights: Tensor, uniform: Tensor) -> Tensor:
    """[B] tokens by inverting the cumulative distribution of weights [B, V], of any sum, at [B] uniform numbers.

    The uniform number is scaled by the sum as accumulated, so that on a CPU, which adds one by one, rounding never
    selects a token of probability 0. The sums of a parallel scan may fall, or rise at such a token: see `never_zero`.
    """
    cumulative = weights.cumsum(-1)
    at = uniform[:, None] * cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, at, right=True).squeeze(1).clamp_(max=weights.shape[1] - 1)
    return chosen if weights.device.type == "cpu" else never_zero(weights, chosen)


def never_zero(weights: Tensor, chosen: Tensor) -> Tensor:
    """[B] the chosen tokens, those of weight 0 replaced by the most likely one. A running maximum of the sums
    would mend them before the choice, at more than the cost of the choice (V = 152k on a CPU)."""
    unlikely = weights.gather(1, chosen[:, None]).squeeze(1) == 0
    return torch.where(unlikely, weights.argmax(-1), chosen)


class StopStrings:
    """Texts that end a completion. Only the last tokens are decoded at each step: a text of n bytes spans at most n
    tokens that say anything, and one more, because some tokenizers drop the space that a text begins with."""

    def __init__(self, policy: Policy, stop: Sequence[str]) -> None:
        self.tokenizer = policy.tokenizer
        self.stop = stop
        self.reach = max((len(text.encode()) for text in stop), default=0) + 1

    def reached(self, completions: Sequence[np.ndarray]) -> list[bool]:
        """[B] whether the newest of the tokens [t] of each completion completes one of them."""
        tails = self.tokenizer.batch_decode([tokens[-self.reach :].tolist() for tokens in completions], **TO_THE_LETTER)
        return [any(text in tail for text in self.stop) for tail in tails]

    def cut(self, text: str) -> str:
        """The text up to the first of them."""
        return text[: min((at for one in self.stop if (at := text.find(one)) >= 0), default=len(text))]
