"""Completions of several turns as an environment is acted on: what stands behind a turn, and what a turn asks for.

Legend: P problems, G completions of each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Self

import numpy as np

from rl.environments.interface import Interface
from rl.environments.turn import as_json
from rl.model.policy import Policy
from rl.model.turns import Turns
from rl.records import Problem
from rl.sampling.scheduling import Draw
from rl.slices import SoFar


@dataclass(frozen=True)
class Conversation:
    """How a policy talks to an environment."""

    turns: Turns
    interface: Interface

    @classmethod
    def of(cls, policy: Policy, interface: Interface) -> Self:
        """Raises TurnsError where nothing can be put behind a turn of the model's."""
        return cls(Turns.of(policy.tokenizer, policy.ends, tools=bool(interface.tools)), interface)

    def given(self, so_far: SoFar, limit: int) -> list[np.ndarray | None]:
        """[P * G] of [t] tokens of each completion, what was observed behind them, ``limit`` at most; None where one is
        over."""
        observed = so_far.observed or ((),) * len(so_far.tokens)
        return [
            None if tokens is None else np.append(tokens, self._behind(tokens, texts))[:limit].astype(np.int32)
            for tokens, texts in zip(so_far.tokens, observed, strict=True)
        ]

    def _behind(self, tokens: np.ndarray, texts: Sequence[str]) -> list[int]:
        return self.turns.observed(texts, closed=int(tokens[-1]) in self.turns.ends) if texts else []

    def actions(
        self, drawn: Sequence[Draw], starts: Sequence[int], problems: Sequence[Problem]
    ) -> list[tuple[str, ...]]:
        """[P] of [G] what each turn asks for that has ended, as a text; empty where none has, and of problems that are
        not played. A turn begins at its one of ``starts``."""
        parameters = {
            tool["function"]["name"]: list(tool["function"]["parameters"]["properties"])
            for tool in self.interface.tools
        }
        samples = len(drawn) // len(problems)
        turns = iter(zip(drawn, starts, strict=True))
        return [
            tuple(
                as_json(self.turns.action(draw.tokens[start:].tolist(), parameters))
                if draw.ended and problem.played
                else ""
                for draw, start in islice(turns, samples)
            )
            for problem in problems
        ]


def turn_starts(count: int, so_far: SoFar | None, drawn_from: Sequence[int] | None) -> list[int]:
    """[P * G] tokens of each of ``count`` completions before its turn: it begins at ``drawn_from`` where something was
    observed, else where it did in ``so_far``."""
    if so_far is None or drawn_from is None:
        return [0] * count
    observed = so_far.observed or ((),) * count
    return [here if texts else before for here, texts, before in zip(drawn_from, observed, so_far.turns, strict=True)]
