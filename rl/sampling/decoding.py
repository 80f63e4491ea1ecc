"""What ends a draw: the token that a uniform number chooses, and the texts behind which nothing is drawn.

Legend: B sequences, V vocabulary.
"""

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from rl.model.head import head_logits
from rl.model.lean import LeanDecoder
from rl.model.policy import Policy
from rl.sampling.choice import Choice

# many tokenizers would take the blanks before punctuation out of a text, which is then not what was sampled
TO_THE_LETTER = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}


def scaled_logits(policy: Policy, hidden: Tensor, temperature: float, lean: LeanDecoder | None) -> Tensor:
    """[B, V] logits over the temperature, of hidden states [B, H]."""
    scores = head_logits(policy.model, hidden) if lean is None else lean.logits(hidden)
    return scores if temperature == 1 else scores.div_(temperature)


def chosen(
    scores: Tensor, greedy: Tensor | bool, uniform: Tensor, choice: Choice | None = None
) -> tuple[Tensor, Tensor]:
    """[B] tokens and their log-probs, by scores [B, V], which are used up: drawn by [B] uniform numbers, or, of rows
    that are `greedy` [B] or if all are, the most likely ones. `choice`: to draw by, where there is one."""
    if choice is not None and greedy is False and scores.dtype == torch.float32:
        return choice(scores, uniform)
    scores = scores.sub_(scores.amax(-1, keepdim=True))
    weights = scores.exp()
    if greedy is True:
        token = scores.argmax(-1)
    else:
        token = choose(weights, uniform)
        if greedy is not False:
            token = torch.where(greedy, scores.argmax(-1), token)
    return token, scores.gather(1, token[:, None]).squeeze(1) - weights.sum(-1).log()


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
    tokens that say anything, and one more, because some tokenizers drop the space that a text begins with; between
    them there may be special ones, which decoding skips. One that is a special token's own text is that token."""

    def __init__(self, policy: Policy, stop: Sequence[str]) -> None:
        self.tokenizer = policy.tokenizer
        self.stop = stop
        self.reach = max((len(text.encode()) for text in stop), default=0) + 1

    def reached(self, completions: Sequence[np.ndarray]) -> list[bool]:
        """[B] whether the newest of the tokens [t] of each completion completes one of them."""
        tails = self.tokenizer.batch_decode([self._tail(tokens) for tokens in completions], **TO_THE_LETTER)
        return [
            any(text in tail for text in self.stop) or (len(tokens) > 0 and int(tokens[-1]) in self.ends)
            for tail, tokens in zip(tails, completions, strict=True)
        ]

    def _tail(self, tokens: np.ndarray) -> list[int]:
        """The last tokens, `reach` of which say something."""
        tail: list[int] = []
        needed = self.reach
        while len(tail) < min(needed, len(tokens)):
            tail = tokens[-needed:].tolist()
            needed = self.reach + sum(token in self._silent for token in tail)
        return tail

    @cached_property
    def _silent(self) -> set[int]:
        """Special tokens, as fast tokenizers know them and as slow ones do."""
        added = self.tokenizer.added_tokens_decoder.items()
        return {*self.tokenizer.all_special_ids, *(token for token, given in added if given.special)}

    @cached_property
    def ends(self) -> set[int]:
        """Special tokens that end a completion."""
        return {token for token in self._silent if self.tokenizer.convert_ids_to_tokens(token) in self.stop}

    def cut(self, text: str) -> str:
        """The text up to the first of them."""
        return text[: min((at for one in self.stop if (at := text.find(one)) >= 0), default=len(text))]
