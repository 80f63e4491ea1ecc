"""Passes over tokens that are given: prompts, and what has been drawn or observed behind them.

Legend: R rows of a pass, S its width, N tokens in all of them, M places (prompts).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from rl.model.attention import Grid
from rl.model.compiled import bounds
from rl.model.head import hidden_states
from rl.model.lean import LeanDecoder
from rl.model.policy import Policy
from rl.sampling.cache import ExtendPass, Pair, PrefillPass, SlotCache

POSITIONS = 16_384  # of a pass, those counted that its rows attend to
WORTH, NEARLY = 512, 0.8  # positions at least of one that leaves out shorter rows, and how short these are


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


def prefilled(
    policy: Policy, cache: SlotCache, prefills: Sequence[Prefill], lean: LeanDecoder | None
) -> Iterator[tuple[Prefill, Tensor]]:
    """Leave these in the cache, either prompts or rows; each with the state [hidden] behind its last token. By `lean`
    where that `prefills`, without padding."""
    if lean is not None and lean.prefills:
        for part in parts(prefills, padded=False):
            yield from zip(part, _ragged_pass(policy, cache, part, lean), strict=True)
        return
    for part in parts(prefills):
        yield from zip(part, _padded_pass(policy, cache, part), strict=True)


def parts(prefills: Sequence[Prefill], *, padded: bool = True) -> Iterator[Sequence[Prefill]]:
    """Passes of at most POSITIONS, or of one row, the longest first. Where a row is padded to the longest of its pass,
    one that is much shorter begins the next, once a pass is worth its start."""
    part: list[Prefill] = []
    before = 0
    for one in sorted(prefills, key=lambda each: -len(each.ids)):
        longest = len(part[0].ids) if part else 0
        much_shorter = padded and len(one.ids) < NEARLY * longest and len(part) * longest >= WORTH
        if part and ((len(part) + 1) * (longest + max(before, one.before)) > POSITIONS or much_shorter):
            yield part
            part, before = [], 0
        part.append(one)
        before = max(before, one.before)
    if part:
        yield part


def _padded_pass(policy: Policy, cache: SlotCache, part: Sequence[Prefill]) -> Tensor:
    """[R, hidden] behind the last token of each."""
    device = policy.device
    R, S = len(part), max(len(one.ids) for one in part)  # noqa: N806
    ids = torch.full((R, S), policy.end)
    for row, one in enumerate(part):
        ids[row, : len(one.ids)] = torch.tensor(one.ids)
    at = torch.arange(S, device=device)
    place, kept_in, front, past, count = torch.tensor(
        [(one.place, -1 if one.row is None else one.row, one.front, one.past, len(one.ids)) for one in part],
        device=device,
    ).T
    # what pads a row is behind its tokens, where none of them looks
    if part[0].front:
        own = max(one.past + len(one.ids) for one in part)
        prompt = torch.arange(max(one.front for one in part), device=device) < front[:, None, None]
        seen = torch.arange(own, device=device) <= (past[:, None] + at)[:, :, None]
        mask = torch.cat([prompt.expand(R, S, -1), seen], 2)[:, None]
        row, column = (at < count[:, None]).nonzero(as_tuple=True)
        tokens = row, column, past[row] + column
        by: ExtendPass | PrefillPass = ExtendPass(cache, place, prompt.shape[2], kept_in, own, *tokens)
    else:
        mask = (at[:, None] >= at).expand(R, 1, S, S)
        by = PrefillPass(cache, place, None if part[0].row is None else kept_in)
    inputs: dict[str, Any] = {"input_ids": ids.to(device), "position_ids": (front + past)[:, None] + at}
    states = hidden_states(policy.model, mask=mask, past_key_values=by, use_cache=True, **inputs)
    return states[torch.arange(R, device=device), count - 1]


@dataclass(frozen=True)
class Ragged:
    """What kernels ask of the cache in a pass without padding: each token attends to those before it in its row, and to
    the prompt that is before these."""

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
        """As `DecodePass.kept`."""
        cache = self.cache
        own = (cache.rows if self.in_rows else cache.prompts_kept).of(layer, (self.like, self.like), self.length)
        return own, cache.prompts_kept.layers[layer]


def _ragged_pass(policy: Policy, cache: SlotCache, part: Sequence[Prefill], lean: LeanDecoder) -> Tensor:
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
    ragged = Ragged(
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
    return lean(ids[:, None], positions[:, None], ragged)[torch.from_numpy(ends - 1), 0]
