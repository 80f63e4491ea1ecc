"""Keys and values of the sequences that are decoded: their own, and those of their prompts, which a group shares.

Legend: M places (prompts), B rows (sequences) or prompts in a pass, H heads, D head size.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cached_property

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


@dataclass(frozen=True)
class PrefillPass:
    """A pass over prompts, or, where rows have copies of theirs, over prompts with tokens behind them."""

    places: Tensor  # [R] of the prompts
    rows: Tensor | None  # [R] that keep the whole of it; None: the places keep it


@dataclass(frozen=True)
class ExtendPass:
    """A pass over tokens of rows, whose prompts' keys are in their places, perhaps with those of tokens before them."""

    places: Tensor  # [R]
    prompt: int  # positions of the prompts
    rows: Tensor  # [R]
    own: int  # positions of the rows, these tokens included
    row: Tensor  # [N] of each token the row of the pass
    column: Tensor  # [N] where it is in the pass
    at: Tensor  # [N] where it is kept


class SlotCache:
    """Keys and values of rows and places; the interface that transformers' attention layers call.

    A pass is either `fill`, over prompts, or `decode`, over one new token of each of the first rows. Where rows do not
    share their prompts' keys, each has a copy of them in front of its own.
    """

    def __init__(
        self, rows: int, places: int, own: int, prompt: int, *, share: bool, grows: bool, dense: bool = True
    ) -> None:
        """`own` and `prompt`: positions of a completion and of a prompt at most."""
        self.share = share
        self.kept_in = self.parts = None  # a decoding step has a token of each row
        self.rows = KeyValues(rows, own if share else prompt + own, grows=grows, dense=dense)
        self.prompts_kept = KeyValues(places, prompt, grows=grows)
        self._filling: PrefillPass | ExtendPass | None = None
        self._layer = 0
        self.shared_layers: set[int] = set()  # whose prompts were asked for

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes + self.prompts_kept.nbytes

    def get_seq_length(self, *_: object) -> int:
        return 0 if self._filling is not None else self._length - 1

    # -- over prompts

    @property
    def filling(self) -> bool:
        return self._filling is not None

    def fill(self, filling: PrefillPass | ExtendPass) -> None:
        """The next pass is over tokens that are given."""
        self._filling = filling

    def begin(self, row: Tensor, place: Tensor) -> None:
        """These rows begin behind the prompts of these places."""
        if self.share:
            return
        for layer, pair in self.prompts_kept.layers.items():
            for to, kept in zip(self.rows.of(layer, pair, pair[0].shape[2]), pair, strict=True):
                to[row, :, : kept.shape[2]] = kept[place]

    # -- over one new token of each row

    def decode(
        self,
        at: Tensor,
        length: int,
        grid: Grid,
        prompt_lengths: Tensor,
        prompt: int,
        *,
        even: bool = False,
        even_prompts: bool = False,
    ) -> None:
        """The next pass is over one token of each of the first B rows.

        Args:
            at: [B] the index that its key gets among the row's.
            length: the largest of them, and one.
            prompt_lengths: [M], `prompt` the largest.
            even: whether all of `at` are the same; `even_prompts`: whether all prompts are of one length.
        """
        self._filling = None
        self.at, self._length, self._prompt = at, length, prompt
        self.prompt_lengths = prompt_lengths
        self._row = torch.arange(len(at), device=at.device)
        self._flat: dict[tuple[int, int], Tensor] = {}  # by heads and positions
        self.grid = grid
        self._even, self._even_prompts = even, even_prompts
        self.__dict__.pop("own_bias", None)
        self.__dict__.pop("prompt_bias", None)
        self.mask = torch.ones((1, 1, 1, 1), dtype=torch.bool, device=at.device) if self.share else self._seen()

    def _seen(self) -> Tensor:
        """[B, 1, 1, L] whether a row sees its own keys."""
        return (torch.arange(self._length, device=self.at.device) <= self.at[:, None])[:, None, None]

    # computed for the first layer that asks; the next step forgets it
    @cached_property
    def own_bias(self) -> Tensor | None:
        return None if self._even else _bias(self._seen())

    @cached_property
    def prompt_bias(self) -> Tensor | None:
        if self._even_prompts:
            return None
        seen = torch.arange(self._prompt, device=self.at.device) < self.prompt_lengths[:, None]
        return _bias(seen[:, None, None])

    def kept(self, layer: int) -> tuple[Pair, Pair]:
        """Keys and values of all rows, and of all prompts, in a layer."""
        self._layer = layer
        self.shared_layers.add(layer)
        prompts = self.prompts_kept.layers[layer]
        return self.rows.of(layer, prompts, self._length), prompts

    def prompts(self) -> Pair:
        """[M, H, S, D] of the prompts, in the layer that was updated last."""
        self.shared_layers.add(self._layer)
        keys, values = self.prompts_kept.layers[self._layer]
        return keys[: self.grid.places, :, : self._prompt], values[: self.grid.places, :, : self._prompt]

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> Pair:
        """Keep [B, H, new, D], and return all that they attend to, but the prompts that are shared."""
        if self._filling is not None:
            return self._keep(self._filling, (keys, values), layer)
        kept = self.rows.of(layer, (keys, values), self._length)
        for to, new in zip(kept, (keys, values), strict=True):
            to.view(-1, to.shape[3]).index_copy_(0, self._index(*to.shape[1:3]), new.reshape(-1, to.shape[3]))
        self._layer = layer
        count = len(self.at)
        self.current = kept[0][:count, :, : self._length], kept[1][:count, :, : self._length]
        return self.current

    def _index(self, heads: int, positions: int) -> Tensor:
        """[B * H] where each row's new key is, where rows, heads and positions lie one behind another."""
        if (heads, positions) not in self._flat:
            head = self._row[:, None] * heads + torch.arange(heads, device=self.at.device)
            self._flat[heads, positions] = (head * positions + self.at[:, None]).flatten()
        return self._flat[heads, positions]

    def _keep(self, filling: PrefillPass | ExtendPass, new: Pair, layer: int) -> Pair:
        """All that a pass over `new` attends to, which is kept."""
        if isinstance(filling, PrefillPass):
            kept, to = (self.prompts_kept, filling.places) if filling.rows is None else (self.rows, filling.rows)
            width = min(kept.positions, new[0].shape[2])
            for there, given in zip(kept.of(layer, new, width), new, strict=True):
                there[to, :, :width] = given[:, :, :width]
            return new
        own = self.rows.of(layer, new, filling.own)
        for there, given in zip(own, new, strict=True):
            there[filling.rows[filling.row], :, filling.at] = given[filling.row, :, filling.column]
        prompts = self.prompts_kept.layers[layer]
        keys, values = (
            torch.cat([before[filling.places, :, : filling.prompt], there[filling.rows, :, : filling.own]], 2)
            for before, there in zip(prompts, own, strict=True)
        )
        return keys, values


def _bias(seen: Tensor) -> Tensor:
    """To be added to scores [B, 1, 1, L], 0 where a key is seen."""
    return torch.zeros(seen.shape, device=seen.device).masked_fill_(~seen, MASKED)


def run(
    policy: Policy, cache: SlotCache, ids: Tensor, positions: Tensor, mask: Tensor, lean: LeanDecoder | None = None
) -> Tensor:
    """[B, L, hidden] of tokens [B, L] at these positions, by the cache's next pass."""
    if lean is not None and cache.share and not cache.filling:
        return lean(ids, positions, cache)
    shared = cache.share and not cache.filling
    within: AbstractContextManager[None] = attention_by(policy.model, NAME) if shared else nullcontext()
    extra = {"shared": cache} if shared else {}
    with within:
        return hidden_states(
            policy.model,
            mask=mask,
            input_ids=ids,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            **extra,
        )
