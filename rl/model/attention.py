"""Attention of one new token of each sequence to its own keys and to those of its prompt, which its group shares.

Legend: B rows (sequences), M places (prompts), C rows of the place with most, H heads of keys, R query heads of each,
D head size, L own keys, S keys of a prompt.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

NAME = "rlvf_shared_prompts"
MASKED = float("-inf")


class NotSharedError(RuntimeError):
    """A model whose attention is not the plain one that `attend` computes."""


@dataclass(frozen=True)
class Grid:
    """How B rows lie in M places of C rows each; without indices where they do so one after another."""

    places: int
    columns: int  # C
    rows: Tensor | None  # [M * C] the row at each point of the grid, any where there is none
    points: Tensor | None  # [B] the point of each row

    @classmethod
    def of(cls, place_of: Sequence[int], places: int, device: torch.device) -> "Grid":
        columns = columns_of(place_of)
        rows, points = laid_out(place_of, places, columns)
        if points == list(range(places * columns)):
            return cls(places, columns, None, None)
        return cls(places, columns, torch.tensor(rows, device=device), torch.tensor(points, device=device))

    def gather(self, of_rows: Tensor) -> Tensor:
        """[M, H, C * R, D] from [B, H, R, D]."""
        found = of_rows if self.rows is None else of_rows.index_select(0, self.rows)
        _, heads, each, size = found.shape
        found = found.view(self.places, self.columns, heads, each, size).transpose(1, 2)
        return found.reshape(self.places, heads, self.columns * each, size)

    def scatter(self, of_places: Tensor) -> Tensor:
        """[B, H, R, X] from [M, H, C * R, X]."""
        _, heads, each, size = of_places.shape
        found = of_places.view(self.places, heads, self.columns, each // self.columns, size).transpose(1, 2)
        found = found.reshape(self.places * self.columns, heads, each // self.columns, size)
        return found if self.points is None else found.index_select(0, self.points)


def columns_of(place_of: Sequence[int]) -> int:
    """The rows of the place with most, by the place of each row."""
    return max(Counter(place_of).values())


def laid_out(place_of: Sequence[int], places: int, columns: int) -> tuple[list[int], list[int]]:
    """[M * C] the row at each point, any where there is none, and [B] the point of each row."""
    rows, points, taken = [0] * (places * columns), [], [0] * places
    for row, place in enumerate(place_of):
        points.append(place * columns + taken[place])
        rows[points[-1]] = row
        taken[place] += 1
    return rows, points


class Seen(Protocol):
    """What kernels need of the cache."""

    @property
    def grid(self) -> Grid: ...

    @property
    def at(self) -> Tensor:
        """[B] the index of each row's new key among its own."""

    @property
    def prompt_lengths(self) -> Tensor:
        """[M]."""

    @property
    def kept_in(self) -> Tensor | None:
        """[B] among whose keys each row's are, where rows are tokens that follow one another; None: its own."""

    @property
    def parts(self) -> Sequence[int] | None:
        """Bounds of rows between which none follows another; None: none does."""

    def kept(self, layer: int) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """All that is kept of a layer, where the new ones are to be written: keys and values [rows, H, positions, D] of
        rows, and [places, H, positions, D] of prompts."""


class Shared(Seen, Protocol):
    """What `attend` needs of it."""

    current: tuple[Tensor, Tensor]  # own keys and values of the layer, as last given

    @property
    def mask(self) -> Tensor:
        """What the model is given in place of one."""

    @property
    def own_bias(self) -> Tensor | None:
        """[B, 1, 1, L] added to scores; None where all own keys are seen."""

    @property
    def prompt_bias(self) -> Tensor | None:
        """[M, 1, 1, S], likewise."""

    def prompts(self) -> tuple[Tensor, Tensor]:
        """[M, H, S, D] keys and values of the prompts, of the same layer."""

    def update(self, keys: Tensor, values: Tensor, layer: int) -> tuple[Tensor, Tensor]:
        """Keep those [B, H, 1, D] of a layer; [B, H, L, D] of the rows."""


def attend(
    _: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    shared: Shared | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """[B, 1, H * R, D] of `query` [B, H * R, 1, D] and own keys and values [B, H, L, D].

    Exact: one softmax over both parts. Raises NotSharedError for what transformers' `sdpa` would do otherwise.
    """
    if shared is None or attention_mask is not shared.mask:
        raise NotSharedError("it has masks of its own, or does not hand on what its decoder is given")
    if key is not shared.current[0] or value is not shared.current[1]:
        raise NotSharedError("it attends to other keys and values than the cache has given it last")
    if not plain(others):
        raise NotSharedError("its scores are not plain")
    rows, heads, _length, size = key.shape
    query = query.reshape(rows, heads, -1, size)
    query = query * (size**-0.5 if scaling is None else scaling)
    return joint(query, key, value, shared).reshape(rows, 1, -1, value.shape[3]), None


def plain(others: Mapping[str, Any]) -> bool:
    """Whether scores are scaled products and nothing more, by what else a model hands its attention."""
    return all(others.get(name) is None for name in ("position_bias", "softcap", "s_aux", "cache"))


def joint(query: Tensor, key: Tensor, value: Tensor, shared: Shared) -> Tensor:
    """[B, H, R, D] of scaled queries [B, H, R, D] to own keys and values [B, H, L, D] and to those of the prompts."""
    keys, values = shared.prompts()
    to_prompt = shared.grid.gather(query) @ keys.transpose(2, 3)
    if shared.prompt_bias is not None:
        to_prompt = to_prompt.add_(shared.prompt_bias)
    to_own = query @ key.transpose(2, 3)
    if shared.own_bias is not None:
        to_own = to_own.add_(shared.own_bias)
    scores = torch.cat([shared.grid.scatter(to_prompt), to_own], -1)
    # a GPU's kernel adds up in float32 and rounds once, as this does
    weights = scores.softmax(-1) if scores.is_cuda else scores.softmax(-1, dtype=torch.float32).to(query.dtype)
    split = keys.shape[2]
    found = shared.grid.scatter(shared.grid.gather(weights[..., :split]) @ values)
    return found.add_(weights[..., split:] @ value)


AttentionInterface.register(NAME, attend)


@contextmanager
def attention_by(model: PreTrainedModel, name: str) -> Iterator[None]:
    """Inside, the model's attention is the function that transformers knows by this name."""
    config = model.config
    before = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = before
