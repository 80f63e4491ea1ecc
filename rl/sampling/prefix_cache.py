"""Keys and values of completions that have ended a turn, from one call of an engine to the next: where one goes on with
what was observed, only that is computed."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch

from rl.model.memory import spare_bytes
from rl.model.parking import ModelMemory
from rl.model.policy import Policy
from rl.sampling.cache import Pair

SHARE = 0.25  # at most of the memory that can be counted on

Key = tuple[tuple[int, ...], bytes]  # a prompt, and the tokens behind it
Layers = Mapping[int, Pair]  # [1, H, positions, D] each, by layer


@dataclass(frozen=True)
class CachedPrompt:
    """A prompt."""

    layers: Layers
    state: torch.Tensor  # [hidden] behind its last token


@dataclass(frozen=True)
class CachedCompletion:
    """A completion so far."""

    positions: int  # of all but its last token, which no model was given yet
    layers: Layers


class PrefixCache:
    """Of one policy. Those of other weights are forgotten; where memory is short the oldest completions are, and all
    where the prompts alone have no room."""

    def __init__(self) -> None:
        self._prompts: dict[tuple[int, ...], CachedPrompt] = {}
        self._rows: dict[Key, CachedCompletion] = {}  # the oldest first
        self._counts: Counter[Key] = Counter()  # completions that are alike
        self._lengths: defaultdict[tuple[int, ...], Counter[int]] = defaultdict(Counter)  # of those of a prompt
        self._weights = 0
        self._room = 0.0
        self.nbytes = 0

    def follow(self, weights: int, device: torch.device) -> None:
        """The parameters have been written to so often."""
        if weights != self._weights:
            self.clear()
            self._weights = weights
        self._room = SHARE * (spare_bytes(device) + self.nbytes)

    def clear(self) -> None:
        """Forget all."""
        for each in (self._prompts, self._rows, self._counts, self._lengths):
            each.clear()
        self.nbytes = 0

    def put(self, prompt: tuple[int, ...], tokens: np.ndarray, made: Callable[[], Layers]) -> None:
        """Keep a completion, whose keys and values are ``made`` where those of one like it are not kept."""
        key = prompt, tokens.tobytes()
        self._counts[key] += 1
        if key not in self._rows:
            self._rows[key] = CachedCompletion(len(tokens) - 1, made())
            self._lengths[prompt][len(tokens)] += 1
            self._count(self._rows[key].layers)

    def put_prompt(self, prompt: tuple[int, ...], made: Callable[[], CachedPrompt]) -> None:
        """Keep a prompt, ``made`` where it is not kept."""
        if prompt not in self._prompts:
            self._prompts[prompt] = made()
            self._count(self._prompts[prompt].layers)

    def prompt(self, prompt: tuple[int, ...]) -> CachedPrompt | None:
        """That of a prompt, where it is kept."""
        return self._prompts.get(prompt)

    def take(self, prompt: tuple[int, ...], tokens: np.ndarray) -> CachedCompletion | None:
        """What is kept of a completion that goes on with more tokens, and is given away by this."""
        for length in sorted(self._lengths.get(prompt, ()), reverse=True):
            key = prompt, tokens[:length].tobytes()
            if length <= len(tokens) and key in self._rows:
                row = self._rows[key]
                self._counts[key] -= 1
                if not self._counts[key]:
                    self._forget(key)
                return row
        return None

    def _forget(self, key: Key) -> None:
        row = self._rows.pop(key)
        del self._counts[key]
        prompt, _ = key
        lengths = self._lengths[prompt]
        lengths[row.positions + 1] -= 1
        if not lengths[row.positions + 1]:
            del lengths[row.positions + 1]
        self.nbytes -= _nbytes(row.layers)

    def _count(self, layers: Layers) -> None:
        self.nbytes += _nbytes(layers)
        while self.nbytes > self._room and self._rows:
            self._forget(next(iter(self._rows)))
        if self.nbytes > self._room:
            self.clear()


class SamplerMemory(ModelMemory):
    """A model with the keys and values that are kept of it: they do not move, and are forgotten where it is parked."""

    def __init__(self, policy: Policy, kept: PrefixCache) -> None:
        super().__init__(policy.model, policy.device)
        self._kept = kept

    @property
    def nbytes(self) -> int:
        return super().nbytes + self._kept.nbytes

    def park(self) -> None:
        super().park()
        self._kept.clear()


def _nbytes(layers: Layers) -> int:
    return sum(each.nbytes for pair in layers.values() for each in pair)
