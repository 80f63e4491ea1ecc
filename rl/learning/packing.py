"""Packing: one row per group, the prompt once and its completions behind it, each blind to the others.

    row:      p p p p a a a b b b b c c .      p prompt, a b c completions, . padding
    position: 0 1 2 3 4 5 6 4 5 6 7 4 5 0

A completion's token sees the prompt and its own completion up to itself, so its log-prob is the one that it would have
alone behind the prompt, at a fraction of the work: the prompt is computed once instead of G times.

Legend: R rows, L positions in a row, N completion tokens in all rows.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rl.records import Rollouts


@dataclass(frozen=True)
class Packed:
    """Rows ready for a forward pass, and where each completion token is predicted."""

    tokens: Tensor  # [R, L]
    positions: Tensor  # [R, L]
    mask: Tensor  # [R, 1, L, L] bool: True where a query (third axis) sees a key (fourth)
    rows: Tensor  # [N] the row of each completion token
    logit_positions: Tensor  # [N] the position in the row whose hidden state predicts it
    targets: Tensor  # [N] the token itself
    group: Tensor  # [N] index of its group in the rollouts
    sample: Tensor  # [N] its completion within the group
    token_index: Tensor  # [N] its position within the completion


def row_length(rollouts: Rollouts, group: int) -> int:
    """Positions that a packed group takes."""
    return len(rollouts.prompts[group]) + int(rollouts.lengths[group].sum())


def microbatches(rollouts: Rollouts, groups: Sequence[int], microbatch_tokens: int) -> Iterator[list[int]]:
    """Split groups into rows of similar length whose padded area stays within ``microbatch_tokens`` (a longer single
    group goes alone)."""
    waiting: list[int] = []
    for group in sorted(groups, key=lambda g: (row_length(rollouts, g), g)):
        # the newest is the longest, so it sets the width
        if waiting and (len(waiting) + 1) * row_length(rollouts, group) > microbatch_tokens:
            yield waiting
            waiting = []
        waiting.append(group)
    if waiting:
        yield waiting


def pack(rollouts: Rollouts, groups: Sequence[int], device: torch.device) -> Packed:
    """The named groups, a row each."""
    length = max(row_length(rollouts, group) for group in groups)
    tokens = np.zeros((len(groups), length), dtype=np.int64)
    positions = np.zeros_like(tokens)
    segments = np.full_like(tokens, -1)  # 0 the prompt, 1.. the completions, -1 padding
    where: list[tuple[int, int, int, int, int, int]] = []
    for row, group in enumerate(groups):
        prompt = rollouts.prompts[group]
        start = len(prompt)
        tokens[row, :start] = prompt
        positions[row, :start] = np.arange(start)
        segments[row, :start] = 0
        for sample, count in enumerate(rollouts.lengths[group]):
            end = start + int(count)
            tokens[row, start:end] = rollouts.tokens[group, sample, :count]
            positions[row, start:end] = len(prompt) + np.arange(count)
            segments[row, start:end] = sample + 1
            for t in range(count):
                predictor = start + t - 1 if t else len(prompt) - 1
                where.append((row, predictor, int(rollouts.tokens[group, sample, t]), group, sample, t))
            start = end
    segment = torch.from_numpy(segments).to(device)
    query, key = segment[:, :, None], segment[:, None, :]
    at = torch.arange(length, device=device)
    sees = (at[:, None] >= at) & ((key == query) | (key == 0)) & (key >= 0) | (at[:, None] == at)
    index = torch.tensor(where, dtype=torch.int64, device=device).reshape(-1, 6)
    return Packed(
        torch.from_numpy(tokens).to(device),
        torch.from_numpy(positions).to(device),
        sees[:, None],
        *index.unbind(1),
    )
