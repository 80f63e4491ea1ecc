"""Keys and values of the sequences that are decoded: their own, and those of their prompts, which a group shares.

Legend: M places (prompts), B rows (sequences) or prompts in a pass, H heads, D head size.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from rl.model.attention import MASKED, NAME, Grid, attention_by
from rl.model.head import hidden_states
from rl.model.lean import LeanDecoder
from rl.model.policy import Policy
from rl.sampling.scheduling import Move

Pair = tuple[Tensor, Tensor]
GROWTH = 8  # positions, and the part of those that there are
AHEAD = 64  # positions at least of what need not be dense, and as many again as there are


class KeyValues:
    """Keys and values of `count` sequences of at most `positions` each, in one allocation per layer.

    One that `grows` does so with the sequences, by little where it is to be `dense`: a CPU reads such tensors up to
    three times as fast.
    """

    def __init__(self, count: int, positions: int, *, grows: bool, dense: bool = True) -> None:
        self.count = count
        self.positions = positions
        self.grows = grows
        self.dense = dense
        self.layers: dict[int, Pair] = {}  # [count, H, positions so far, D] each

    def of(self, layer: int, like: Pair, needed: int) -> Pair:
        """Those of a layer, with the heads of `like` and room for `needed` positions; at first zeros, because what is
        masked is multiplied by 0."""
        old = self.layers.get(layer)
        if old is not None and old[0].shape[2] >= needed:
            return old
        size = self.positions
        if self.grows:
            size = min(size, needed + (max(GROWTH, needed // GROWTH) if self.dense else max(AHEAD, needed)))
        made = []
        for index, each in enumerate(like):
            new = each.new_empty(self.count, each.shape[1], size, each.shape[3])
            before = 0 if old is None else old[index].shape[2]
            if old is not None:
                new[:, :, :before] = old[index]
            new[:, :, before:] = 0
            made.append(new)
        keys, values = made
        self.layers[layer] = keys, values
        return keys, values

    def copied(self, index: int, positions: int) -> dict[int, Pair]:
        """[1, H, positions, D] of one sequence, by layer."""
        return {
            layer: (keys[index, None, :, :positions].clone(), values[index, None, :, :positions].clone())
            for layer, (keys, values) in self.layers.items()
        }

    def restore(self, copies: Mapping[int, Mapping[int, Pair]]) -> None:
        """Some sequences begin with what was copied."""
        widths = {index: pair[0].shape[2] for index, layers in copies.items() for pair in layers.values()}
        for layer in next(iter(copies.values()), {}):
            for index, layers in copies.items():
                kept = self.of(layer, layers[layer], max(widths.values()))
                for to, copy in zip(kept, layers[layer], strict=True):
                    to[index, :, : widths[index]] = copy[0]

    def move(self, moves: Sequence[Move]) -> None:
        move([kept for pair in self.layers.values() for kept in pair], moves)

    @property
    def nbytes(self) -> int:
        return sum(kept.nbytes for pair in self.layers.values() for kept in pair)


def move(tensors: Sequence[Tensor], moves: Sequence[Move]) -> None:
    """Copy rows of each; no row that is a source is a target."""
    if not moves or not tensors:
        return
    to, source = (torch.tensor(each, device=tensors[0].device) for each in zip(*moves, strict=True))
    for tensor in tensors:
        tensor[to] = tensor[source]


class SlotCache:
    """Keys and values of rows and places. What is computed with them is a pass, the interface that transformers'
    attention layers call: over tokens that are given (`PrefillPass`, `ExtendPass`) or over a new token of each of the
    first rows (`DecodePass`). Where rows do not share their prompts' keys, each has a copy of them in front of its own.
    """

    def __init__(
        self, rows: int, places: int, own: int, prompt: int, *, share: bool, grows: bool, dense: bool = True
    ) -> None:
        """`own` and `prompt`: positions of a completion and of a prompt at most."""
        self.share = share
        self.rows = KeyValues(rows, own if share else prompt + own, grows=grows, dense=dense)
        self.prompts_kept = KeyValues(places, prompt, grows=grows)

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.prompts_kept.nbytes

    def begin(self, row: Tensor, place: Tensor) -> None:
        """These rows begin behind the prompts of these places."""
        if self.share:
            return
        for layer, pair in self.prompts_kept.layers.items():
            for to, kept in zip(self.rows.of(layer, pair, pair[0].shape[2]), pair, strict=True):
                to[row, :, : kept.shape[2]] = kept[place]


@dataclass(frozen=True)
class PrefillPass:
    """A pass over prompts, or, where rows have copies of theirs, over prompts with tokens behind them."""

    cache: SlotCache
    places: Tensor  # [R] of the prompts
    rows: Tensor | None  # [R] that keep the whole of it; None: the places keep it

    def get_seq_length(self, *_: object) -> int:
        return 0

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> Pair:
        """Keep [R, H, S, D], which is all that they attend to."""
        kept, to = (self.cache.prompts_kept, self.places) if self.rows is None else (self.cache.rows, self.rows)
        width = min(kept.positions, keys.shape[2])
        for there, given in zip(kept.of(layer, (keys, values), width), (keys, values), strict=True):
            there[to, :, :width] = given[:, :, :width]
        return keys, values


@dataclass(frozen=True)
class ExtendPass:
    """A pass over tokens of rows, whose prompts' keys are in their places, perhaps with those of tokens before them."""

    cache: SlotCache
    places: Tensor  # [R]
    prompt: int  # positions of the prompts
    rows: Tensor  # [R]
    own: int  # positions of the rows, these tokens included
    row: Tensor  # [N] of each token the row of the pass
    column: Tensor  # [N] where it is in the pass
    at: Tensor  # [N] where it is kept

    def get_seq_length(self, *_: object) -> int:
        return 0

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> Pair:
        """Keep [R, H, S, D]; with what is before them."""
        own = self.cache.rows.of(layer, (keys, values), self.own)
        for there, given in zip(own, (keys, values), strict=True):
            there[self.rows[self.row], :, self.at] = given[self.row, :, self.column]
        keys, values = (
            torch.cat([before[self.places, :, : self.prompt], there[self.rows, :, : self.own]], 2)
            for before, there in zip(self.cache.prompts_kept.layers[layer], own, strict=True)
        )
        return keys, values


@dataclass(eq=False)
class DecodePass:
    """A pass over one new token of each of the first B rows: what kernels and `rl.model.attention.attend` ask for."""

    cache: SlotCache
    at: Tensor  # [B] the index that its key gets among the row's
    length: int  # the largest of them, and one
    grid: Grid
    prompt_lengths: Tensor  # [M]
    prompt: int  # the largest of them
    even: bool = False  # whether all of `at` are the same
    even_prompts: bool = False  # whether all prompts are of one length
    kept_in: None = field(default=None, init=False)
    parts: None = field(default=None, init=False)
    shared_layers: set[int] = field(default_factory=set, init=False)  # whose prompts were asked for
    layer: int = field(default=0, init=False)  # that was updated last
    current: Pair = field(init=False)  # of that layer
    _flat: dict[tuple[int, int], Tensor] = field(default_factory=dict, init=False)

    def get_seq_length(self, *_: object) -> int:
        return self.length - 1

    # computed for the first layer that asks

    @cached_property
    def mask(self) -> Tensor:
        """As `_seen`; of shared prompts [1, 1, 1, 1], by which `attend` knows that it is given no other."""
        return torch.ones((1, 1, 1, 1), dtype=torch.bool, device=self.at.device) if self.cache.share else self._seen

    @property
    def _seen(self) -> Tensor:
        """[B, 1, 1, L] whether a row sees its own keys."""
        return (torch.arange(self.length, device=self.at.device) <= self.at[:, None])[:, None, None]

    @cached_property
    def own_bias(self) -> Tensor | None:
        return None if self.even else _bias(self._seen)

    @cached_property
    def prompt_bias(self) -> Tensor | None:
        if self.even_prompts:
            return None
        seen = torch.arange(self.prompt, device=self.at.device) < self.prompt_lengths[:, None]
        return _bias(seen[:, None, None])

    # -- of a layer

    def kept(self, layer: int) -> tuple[Pair, Pair]:
        """Keys and values of all rows, and of all prompts."""
        self.shared_layers.add(layer)
        prompts = self.cache.prompts_kept.layers[layer]
        return self.cache.rows.of(layer, prompts, self.length), prompts

    def prompts(self) -> Pair:
        """[M, H, S, D] of the prompts, in the layer that was updated last."""
        self.shared_layers.add(self.layer)
        keys, values = self.cache.prompts_kept.layers[self.layer]
        return keys[: self.grid.places, :, : self.prompt], values[: self.grid.places, :, : self.prompt]

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> Pair:
        """Keep [B, H, 1, D], and return all that they attend to, but the prompts that are shared."""
        kept = self.cache.rows.of(layer, (keys, values), self.length)
        for to, new in zip(kept, (keys, values), strict=True):
            to.view(-1, to.shape[3]).index_copy_(0, self._index(*to.shape[1:3]), new.reshape(-1, to.shape[3]))
        self.layer = layer
        count = len(self.at)
        self.current = kept[0][:count, :, : self.length], kept[1][:count, :, : self.length]
        return self.current

    def _index(self, heads: int, positions: int) -> Tensor:
        """[B * H] where each row's new key is, where rows, heads and positions lie one behind another."""
        if (heads, positions) not in self._flat:
            device = self.at.device
            head = torch.arange(len(self.at), device=device)[:, None] * heads + torch.arange(heads, device=device)
            self._flat[heads, positions] = (head * positions + self.at[:, None]).flatten()
        return self._flat[heads, positions]


def _bias(seen: Tensor) -> Tensor:
    """To be added to scores [B, 1, 1, L], 0 where a key is seen."""
    return torch.zeros(seen.shape, device=seen.device).masked_fill_(~seen, MASKED)


def decoded(policy: Policy, step: DecodePass, ids: Tensor, positions: Tensor, lean: LeanDecoder | None) -> Tensor:
    """[B, hidden] of tokens [B, 1] at positions [B]."""
    if step.cache.share and lean is not None:
        return lean(ids, positions[:, None], step)[:, 0]
    inputs: dict[str, Any] = {"input_ids": ids, "position_ids": positions[:, None], "past_key_values": step}
    if not step.cache.share:
        return hidden_states(policy.model, mask=step.mask, use_cache=True, **inputs)[:, 0]
    with attention_by(policy.model, NAME):
        return hidden_states(policy.model, mask=step.mask, use_cache=True, shared=step, **inputs)[:, 0]
