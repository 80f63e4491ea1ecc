"""Packing: a row holds a prompt once and completions of its group behind it, each blind to the others.

    row:      p p p p a a a b b b b c c .      p prompt, a b c completions, . padding
    position: 0 1 2 3 4 5 6 4 5 6 7 4 5 0

A completion's token sees the prompt and its own completion up to itself, so its log-prob is the one that it would have
alone behind the prompt, at a fraction of the work: the prompt is computed once instead of G times. But attention is
computed between all positions of a row, so that long completions have rows of their own; where it is computed in blocks
(`rl.model.blocks`), a row holds as many as fit, and all rows of a pass lie behind one another in a single one.

Observations are seen and not predicted: of a completion only what the policy wrote counts among its tokens.

Legend: R rows, L positions in a row, N completion tokens in all rows, G completions of a group.
"""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask

from rl.model.blocks import FEWEST, WIDTH, Run, block_mask, dense_mask
from rl.model.policy import Policy
from rl.records import Rollouts


@dataclass(frozen=True)
class Row:
    """Completions of one group, behind one another."""

    group: int
    first: int
    end: int  # exclusive

    @property
    def alone(self) -> bool:
        """Whether it has a single completion."""
        return self.end - self.first == 1

    def length(self, rollouts: Rollouts) -> int:
        """Positions that it takes."""
        return len(rollouts.prompts[self.group]) + int(rollouts.lengths[self.group, self.first : self.end].sum())


@dataclass(frozen=True)
class Packed:
    """Rows ready for a forward pass, and where each completion token that the policy wrote is predicted."""

    tokens: Tensor  # [R, L]
    positions: Tensor  # [R, L]
    mask: Tensor | BlockMask | None  # [R, 1, L, L]: see rl.model.blocks, and hidden_states; None: causal
    rows: Tensor  # [N] the row of each completion token
    logit_positions: Tensor  # [N] the position in the row whose hidden state predicts it
    targets: Tensor  # [N] the token itself
    group: Tensor  # [N] index of its group in the rollouts
    sample: Tensor  # [N] its completion within the group
    token_index: Tensor  # [N] its position within the completion
    token_positions: Tensor  # [N] its position in the row
    # how many of the N have logits at once; None: as many as are fast
    chunk: int | None = field(default=None, kw_only=True)


def balance(policy: Policy) -> float:
    """How many positions a token has to attend to until that takes as much arithmetic as its matrix products.

    With W parameters in the matrices of a layer, whose heads are A wide in all, a token takes 2 W operations, and each
    position that it attends to 4 A: 2 A for its score, 2 A for its value.
    """
    model, text = policy.model, policy.text
    ends = (model.get_input_embeddings(), model.get_output_embeddings())  # type: ignore[no-untyped-call]
    apart = {id(parameter) for module in ends for parameter in module.parameters()}
    inner = sum(parameter.numel() for parameter in model.parameters() if id(parameter) not in apart)
    layers = [text.per_layer_config[index] for index in range(text.num_hidden_layers)]  # which may have other heads
    widths = [
        getattr(layer, "num_attention_heads", 0) * (getattr(layer, "head_dim", None) or 0) or text.hidden_size
        for layer in layers
    ]
    return float(inner / (2 * sum(widths)))


def rows_of(
    rollouts: Rollouts, groups: Sequence[int], *, balance: float = math.inf, positions: float = math.inf
) -> list[Row]:
    """The completions of these groups in rows that take the least arithmetic together, of at most so many positions
    where they are of more than one completion.

    With k completions of C tokens behind a prompt of P and b the `balance`, a completion takes (P / k + C) b +
    (P + k C)^2 / k, which is least at k = sqrt(P b + P^2) / C.
    """
    found = []
    for group in groups:
        counts, prompt = rollouts.lengths[group], len(rollouts.prompts[group])
        best = math.sqrt(prompt * (balance + prompt)) * len(counts) / int(counts.sum())
        parts = math.ceil(len(counts) / min(max(1.0, best), len(counts)))
        while True:
            bounds = [part * len(counts) // parts for part in range(parts + 1)]
            of_group = [Row(group, *bound) for bound in itertools.pairwise(bounds)]
            if parts == len(counts) or max(row.length(rollouts) for row in of_group) <= positions:
                break
            parts += 1
        found += [row for row in of_group if rollouts.trained[group, row.first : row.end].any()]
    return found


def microbatches(
    rollouts: Rollouts, rows: Sequence[Row], microbatch_tokens: int, *, blocks: bool = False
) -> Iterator[list[Row]]:
    """Split rows into passes of rows of similar length whose padded area stays within ``microbatch_tokens`` (a longer
    single row goes alone)."""
    waiting: list[Row] = []
    total = 0
    for length, _, _, row in sorted((row.length(rollouts), row.group, row.first, row) for row in rows):
        total += length
        # the newest is the longest, so it sets the width
        if waiting and (joined(total) if blocks else (len(waiting) + 1) * length) > microbatch_tokens:
            yield waiting
            waiting, total = [], length
        waiting.append(row)
    if waiting:
        yield waiting


def joined(total: int) -> int:
    """The positions that rows of so many behind one another are padded to: whole blocks."""
    return max(FEWEST, math.ceil(total / WIDTH)) * WIDTH


def pack(
    rollouts: Rollouts, rows: Sequence[Row], device: torch.device, *, blocks: bool = False, causal: bool = False
) -> Packed:
    """These rows, to be computed together, by attention in `blocks` where that is wanted. Where attention is `causal`
    by itself, rows of one completion each have no mask."""
    causal = causal and not blocks and all(row.alone for row in rows)
    lengths = [row.length(rollouts) for row in rows]
    shape = (1, joined(sum(lengths))) if blocks else (len(rows), max(lengths))
    # padded with a token that is there: of another the model may have a vector that its gradient cannot pass, such as 0
    tokens = np.full(shape, rollouts.prompts[rows[0].group][0], dtype=np.int64)
    positions = np.zeros_like(tokens)
    segments = np.full_like(tokens, -1)  # 0 the prompt, 1.. the completions, -1 padding
    runs: list[Run] = []
    where: list[tuple[int, int, int, int, int, int, int]] = []
    start = 0
    for number, row in enumerate(rows):
        index, start = (0, start) if blocks else (number, 0)
        group, prompt = row.group, rollouts.prompts[row.group]
        first, start = start, start + len(prompt)
        tokens[index, first:start] = prompt
        positions[index, first:start] = np.arange(len(prompt))
        segments[index, first:start] = 0
        runs.append(Run(first, start, own := len(runs)))
        behind = start - 1  # the prompt's last position
        for sample in range(row.first, row.end):
            count = int(rollouts.lengths[group, sample])
            end = start + count
            tokens[index, start:end] = rollouts.tokens[group, sample, :count]
            positions[index, start:end] = len(prompt) + np.arange(count)
            segments[index, start:end] = sample + 1
            runs.append(Run(start, end, own))
            for t in rollouts.trained[group, sample, :count].nonzero()[0].tolist():
                predictor = start + t - 1 if t else behind
                where.append((index, predictor, int(rollouts.tokens[group, sample, t]), group, sample, t, start + t))
            start = end
        # what pads a row is behind it, where nobody looks; positions that begin anew would be other sequences
        if causal:
            positions[index, start:] = np.arange(start, shape[1])
    mask: Tensor | BlockMask | None = None
    if not causal:
        mask = block_mask(runs, shape[1], device) if blocks else dense_mask(torch.from_numpy(segments).to(device))
    named = torch.tensor(where, dtype=torch.int64, device=device).reshape(-1, 7)
    return Packed(
        torch.from_numpy(tokens).to(device),
        torch.from_numpy(positions).to(device),
        mask,
        *named.unbind(1),
    )
