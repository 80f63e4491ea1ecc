"""Slices: what one generator draws of a lease. Completions that are not over go on from their tokens, on any generator:
their noise is named by position, so that they draw what they would have drawn.

Legend: P problems, G completions per problem, T completion tokens, t those of one completion.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rl.records import Maker, Rollouts, arrays

SHARE = 0.1  # of a slice at most that its first step takes, which computes keys and values of the tokens so far


@dataclass(frozen=True)
class SoFar:
    """Completions that are gone on with."""

    prompts: tuple[NDArray[np.int32], ...]  # [P] of [S]
    tokens: tuple[NDArray[np.int32] | None, ...]  # [P * G] of [t]; None where one is over
    turns: tuple[int, ...] = ()  # [P * G] tokens before its turn; () where no completion has turns
    observed: tuple[tuple[str, ...], ...] = ()  # [P * G] what is put behind the tokens first; () where nothing is

    @classmethod
    def of(cls, rollouts: Rollouts, limit: int, observed: tuple[tuple[str, ...], ...] = ()) -> Self:
        """Those of a lease that may have so many tokens."""
        rows = rollouts.tokens.reshape(-1, rollouts.tokens.shape[2])
        lengths, ended = rollouts.lengths.ravel(), over(rollouts, limit).ravel()
        tokens = tuple(None if done else row[:t].copy() for row, t, done in zip(rows, lengths, ended, strict=True))
        return cls(rollouts.prompts, tokens, turn_starts(rollouts) if rollouts.actions else (), observed)


def turn_starts(rollouts: Rollouts) -> tuple[int, ...]:
    """[P * G] tokens of each completion before its last turn: up to the last one that was observed."""
    observed = (rollouts.inside & ~rollouts.trained).reshape(-1, rollouts.tokens.shape[2])
    last = observed.shape[1] - observed[:, ::-1].argmax(axis=1)
    found: list[int] = np.where(observed.any(axis=1), last, 0).tolist()
    return tuple(found)


def over(rollouts: Rollouts, limit: int) -> NDArray[np.bool_]:
    """[P, G] whether a completion has ended, or has all tokens that it may have."""
    done: NDArray[np.bool_] = rollouts.ended | (rollouts.lengths >= limit)
    return done


def joined(before: Rollouts, more: Rollouts) -> Rollouts:
    """A lease so far, with what was drawn since: of ``more`` each completion begins behind its last token of before."""
    lengths = before.lengths + more.lengths
    at = np.arange(lengths.max())
    old = at < before.lengths[:, :, None]
    new = (at < lengths[:, :, None]) & ~old

    def both(first: NDArray[Any], then: NDArray[Any]) -> NDArray[Any]:
        found = np.zeros(new.shape, first.dtype)
        found[old], found[new] = first[before.inside], then[more.inside]
        return found

    drew: NDArray[np.bool_] = more.lengths > 0

    def newest(first: tuple[tuple[str, ...], ...], then: tuple[tuple[str, ...], ...]) -> tuple[tuple[str, ...], ...]:
        return tuple(
            tuple(b if now else a for a, b, now in zip(was, by_now, row, strict=True))
            for was, by_now, row in zip(first, then, drew, strict=False)
        )

    of_tokens = [name for name, (axes, _) in arrays(Rollouts).items() if axes == "PGT"]
    by_token: dict[str, Any] = {name: both(getattr(before, name), getattr(more, name)) for name in of_tokens}
    return replace(
        before,
        **by_token,
        lengths=lengths,
        ended=before.ended | more.ended,
        texts=newest(before.texts, more.texts),
        actions=newest(before.actions, more.actions),
        seconds=before.seconds + more.seconds,
        makers=tuple(map(_makers, before.makers, more.makers, before.lengths.sum(axis=1), more.lengths.sum(axis=1))),
    )


def _makers(one: Maker, other: Maker, drew: int, drew_since: int) -> Maker:
    """The generators that have drawn tokens of a group, of two that drew so many."""
    if not (drew and drew_since):
        return other if drew_since else one
    names = dict.fromkeys([*one.worker.split(", "), *other.worker.split(", ")])
    return Maker(", ".join(names), one.dtype if one.dtype == other.dtype else "")


class SliceEnd:
    """Whether a slice is to end, asked between two steps of the engine, behind the first one that drew tokens: after
    ``seconds``, at least 1 / SHARE times what its first step took, or once its worker is ``leaving``."""

    def __init__(
        self, seconds: float, leaving: Callable[[], bool], clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._seconds, self._leaving, self._clock = seconds, leaving, clock
        self._began = clock()
        self._ends: float | None = None

    def __call__(self) -> bool:
        now = self._clock()
        if self._ends is None:
            self._ends = self._began + max(self._seconds, (now - self._began) / SHARE)
        return now >= self._ends or self._leaving()
