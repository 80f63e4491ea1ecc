"""A pass over tokens that follow one another, without padding, by a lean decoder whose kernels are for such.

Legend: R rows of a pass, N tokens in all of them, M places (prompts).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl.model.attention import Grid
from rl.model.compiled import bounds
from rl.model.lean import LeanDecoder
from rl.model.policy import Policy
from rl.sampling.cache import Pair, SlotCache


class Prefill(NamedTuple):
    """A row of a pass: tokens that stand one behind the other."""

    ids: tuple[int, ...]
    place: int  # of the prompt
    row: int | None = None  # that begins with them; None: they are the prompt
    front: int = 0  # positions of the prompt whose keys are in their place already
    past: int = 0  # positions of the row whose keys are

    @property
    def before(self) -> int:
        """Positions that it attends to and that are not computed."""
        return self.front + self.past


@dataclass(frozen=True)
class Following:
    """What kernels ask of the cache: each token attends to those before it, and to the prompt that is before these."""

    cache: SlotCache
    grid: Grid  # by it, the place of each token
    in_rows: bool  # which keep them, else the places do
    kept_in: Tensor  # [N] of these
    at: Tensor  # [N] where they are kept
    length: int  # the largest of these, and one
    prompt_lengths: Tensor  # [M] of what is before them
    parts: Sequence[int]
    like: Tensor  # [.., H, .., D] heads

    def kept(self, layer: int) -> tuple[Pair, Pair]:
        """As `SlotCache.kept`."""
        cache = self.cache
        own = (cache.rows if self.in_rows else cache.prompts_kept).of(layer, (self.like, self.like), self.length)
        return own, cache.prompts_kept.layers[layer]


def states_behind(policy: Policy, cache: SlotCache, part: Sequence[Prefill], lean: LeanDecoder) -> Tensor:
    """[R, hidden] behind the last token of each, all either prompts or rows, which are left in the cache."""
    counts = np.array([len(one.ids) for one in part])
    ends = counts.cumsum()

    def each(values: Sequence[int]) -> Tensor:
        return torch.from_numpy(np.repeat(values, counts))

    at = torch.arange(int(ends[-1])) + each([one.past for one in part] - (ends - counts))
    places = each([one.place for one in part])
    lengths = torch.zeros(1 + max(one.place for one in part), dtype=torch.int64)
    for one in part:
        lengths[one.place] = one.front
    in_rows = part[0].row is not None
    _, keys, size = lean.heads
    following = Following(
        cache,
        Grid(len(lengths), 1, None, places),
        in_rows,
        each([one.row for one in part if one.row is not None]) if in_rows else places,
        at,
        max(one.past + len(one.ids) for one in part),
        lengths,
        [0, *ends[[last - 1 for last in bounds(len(part), 1)[1:]]].tolist()],
        torch.empty(0, keys, 0, size, dtype=policy.model.dtype),
    )
    ids = torch.tensor([token for one in part for token in one.ids])
    positions = at + each([one.front for one in part])
    return lean(ids[:, None], positions[:, None], following)[torch.from_numpy(ends - 1), 0]
