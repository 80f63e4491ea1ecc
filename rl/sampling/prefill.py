"""Passes over tokens that are given: prompts, and what has been drawn or observed behind them.

Legend: R rows of a pass, S its width.
"""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from rl.model.lean import LeanDecoder
from rl.model.policy import Policy
from rl.sampling.cache import Behind, Filling, SlotCache, run
from rl.sampling.following import Prefill, states_behind

POSITIONS = 16_384  # of a pass, those counted that its rows attend to
WORTH, NEARLY = 512, 0.8  # positions at least of one that leaves out shorter rows, and how short these are


def prefilled(
    policy: Policy, cache: SlotCache, prefills: Sequence[Prefill], lean: LeanDecoder | None
) -> Iterator[tuple[Prefill, Tensor]]:
    """Leave these in the cache, either prompts or rows; each with the state [hidden] behind its last token. By `lean`
    where that is for tokens that follow one another, without padding."""
    if lean is not None and lean.follows:
        for part in parts(prefills, padded=False):
            yield from zip(part, states_behind(policy, cache, part, lean), strict=True)
        return
    for part in parts(prefills):
        yield from zip(part, _pass(policy, cache, part), strict=True)


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


def _pass(policy: Policy, cache: SlotCache, part: Sequence[Prefill]) -> Tensor:
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
        cache.fill(Behind(place, prompt.shape[2], kept_in, own, *tokens))
    else:
        mask = (at[:, None] >= at).expand(R, 1, S, S)
        cache.fill(Filling(place, None if part[0].row is None else kept_in))
    states = run(policy, cache, ids.to(device), (front + past)[:, None] + at, mask)
    return states[torch.arange(R, device=device), count - 1]
