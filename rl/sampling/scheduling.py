"""Which sequences run, and where: rows of a batch and places for prompts, as plain data.

Rows and places in use are always the first ones: what leaves is replaced by the last, and what enters is put behind.
Sequences enter in the order in which they were added.
"""

from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np


class Stretch(NamedTuple):
    """Tokens of a completion that one version drew: up to the next stretch."""

    start: int
    version: int


@dataclass(eq=False)
class Draw:
    """One completion while it is drawn. It is plain data, so that another engine can go on with it."""

    prompt: tuple[int, ...]
    limit: int  # tokens at most
    noise: np.ndarray | None  # [limit] uniform numbers; None takes the most likely token
    tokens: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.int32))  # [t] so far
    logprobs: np.ndarray = field(default_factory=lambda: np.zeros(0, dtype=np.float32))  # [t]; NaN where it was given
    ended: bool = False  # by an end token or a stop string
    goes_on: bool = True  # perhaps behind its end, by another turn
    number: int = 0  # in the order of addition
    stretches: list[Stretch] = field(default_factory=lambda: [Stretch(0, 0)])

    @property
    def over(self) -> bool:
        return self.ended or len(self.tokens) == self.limit

    def give(self, tokens: Sequence[int] | np.ndarray) -> None:
        """Put tokens that were not drawn here behind its own."""
        self.tokens = np.append(self.tokens, np.asarray(tokens, dtype=np.int32))
        self.logprobs = np.append(self.logprobs, np.full(len(tokens), np.nan, dtype=np.float32))

    def by(self, version: int, start: int) -> None:
        """The tokens from `start` on are drawn by `version`."""
        if self.stretches[-1].start == start:
            del self.stretches[-1]
        self.stretches.append(Stretch(start, version))

    @property
    def versions(self) -> np.ndarray:
        """[t] of the weights that drew each token."""
        starts, versions = zip(*self.stretches, strict=True)
        return np.repeat(np.array(versions, dtype=np.int32), np.diff([*starts, len(self.tokens)]))


class Move(NamedTuple):
    """Of a row or a place."""

    to: int
    source: int


class PromptSlot(NamedTuple):
    """A prompt whose keys and values are kept; those of older weights are another place."""

    prompt: tuple[int, ...]
    weights: int


class Scheduler:
    """At most `most_rows` sequences of `longest_own` tokens at once, behind at most `most_places` prompts of
    `longest_prompt`."""

    def __init__(self) -> None:
        self.waiting: deque[Draw] = deque()
        self.rows: list[Draw] = []
        self.place_of: list[int] = []  # of each row
        self.places: list[PromptSlot] = []
        self.most_rows = self.most_places = 0
        self.longest_prompt = self.longest_own = 0
        self.weights = 0  # how often they changed

    def next_entry(self) -> tuple[Draw, int] | None:
        """The first in the queue with the index of its prompt's place, perhaps a new one behind the others; None where
        there is none or no room."""
        if not self.waiting or len(self.rows) == self.most_rows:
            return None
        first = self.waiting[0]
        if len(first.prompt) > self.longest_prompt or first.limit > self.longest_own:
            return None
        wanted = PromptSlot(first.prompt, self.weights)
        if wanted not in self.places:
            if len(self.places) == self.most_places:
                return None
            self.places.append(wanted)
        place = self.places.index(wanted)
        self.rows.append(self.waiting.popleft())
        self.place_of.append(place)
        return first, place

    def moves(self, gone: Collection[int]) -> list[Move]:
        """What closes the gaps that these rows leave."""
        return closing(gone, len(self.rows))

    def leave(self, moves: Sequence[Move], gone: Collection[int]) -> list[Move]:
        """Take these rows out, once `moves` are made; returns the moves of places that close the gaps among those."""
        for to, source in moves:
            self.rows[to], self.place_of[to] = self.rows[source], self.place_of[source]
        left = len(self.rows) - len(gone)
        del self.rows[left:], self.place_of[left:]
        return self.close_places()

    def change(self) -> list[Move]:
        """The weights are others: prompts are computed again for those that enter from now on. Returns moves of places
        as `leave` does."""
        self.weights += 1
        return self.close_places()

    def close_places(self) -> list[Move]:
        """Take those places out that nobody needs; returns the moves that close the gaps."""
        used = set(self.place_of)
        if self.waiting:  # the next one's prompt is needed again
            used |= {place for place, kept in enumerate(self.places) if kept == (self.waiting[0].prompt, self.weights)}
        empty = set(range(len(self.places))) - used
        place_moves = closing(empty, len(self.places))
        now = {source: to for to, source in place_moves}
        for to, source in place_moves:
            self.places[to] = self.places[source]
        del self.places[len(self.places) - len(empty) :]
        self.place_of = [now.get(place, place) for place in self.place_of]
        return place_moves

    def clear(self) -> None:
        """Those that run go back into the queue, each where it was."""
        self.waiting = deque(
            sorted([*(draw for draw in self.rows if not draw.over), *self.waiting], key=lambda draw: draw.number)
        )
        self.rows, self.place_of, self.places = [], [], []


def closing(gone: Collection[int], count: int) -> list[Move]:
    """Moves of the last of `count` things into the gaps among the first ones."""
    left = count - len(gone)
    gaps = sorted(index for index in gone if index < left)
    movers = (index for index in range(left, count) if index not in gone)
    return [Move(to, source) for to, source in zip(gaps, movers, strict=True)]
