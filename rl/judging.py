"""Judging whole groups of completions. It needs no torch: a verifier's process stays small.

Legend: P problems, G completions of each.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from pathlib import Path
from weakref import WeakSet

import numpy as np
from numpy.typing import NDArray

from rl.records import Problem, Verdict, rows_of
from rl.verifiers.contract import Verifier
from rl.verifiers.opened import opened
from rl.verifiers.spec import VerifierError, VerifierSpec
from rl.verifiers.verdicts import NOT_TRIED

PROGRAM, SCORED = "program", "reward_model"  # the parts of a reward that a reward model's score was added to
CUT = "reward_model_cut"  # 1 for a completion that the reward model could not attend to whole
PARTS = 20  # of rewards, that are logged of a batch
MESSAGES = 8  # of failures that a judgement carries
TRIED = 8  # problems of a set that are tried before anything starts, at some ms each
_worked: WeakSet[Verifier] = WeakSet()  # in this process, at least once


class BrokenVerifierError(ValueError):
    """Every completion failed in its verifier, so that there is nothing to learn from."""


@dataclass(frozen=True)
class Judgement:
    """What the verifiers say of G completions for each of P problems."""

    rewards: NDArray[np.float32]  # [P, G]; NaN where the verifier failed
    reasons: tuple[tuple[str, ...], ...]  # [P] of [G]
    parts: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)  # [P, G] each; NaN where there is none
    messages: tuple[tuple[str, ...], ...] = ()  # [P] of [G]: why there is no verdict, "" where there is one
    failed: bool = False  # on every completion, before those that were cut got a reward of 0

    @property
    def broken(self) -> bool:
        """Whether the verifiers judged nothing at all."""
        return self.failed or bool(np.isnan(self.rewards).all())

    @classmethod
    def of(cls, verdicts: Sequence[Sequence[Verdict]]) -> "Judgement":
        """The judgement of [P] of [G] verdicts."""
        names = dict.fromkeys(name for row in verdicts for verdict in row for name in verdict.parts)
        return cls(
            rewards=np.array([[verdict.reward for verdict in row] for row in verdicts], dtype=np.float32),
            reasons=tuple(tuple(verdict.reason for verdict in row) for row in verdicts),
            parts={
                name: np.array([[verdict.parts.get(name, nan) for verdict in row] for row in verdicts], np.float32)
                for name in names
            },
            messages=tuple(tuple(verdict.error for verdict in row) for row in verdicts),
        )

    @classmethod
    def join(cls, judgements: Sequence["Judgement"]) -> "Judgement":
        """Several judgements as one, in order."""
        names = dict.fromkeys(name for judgement in judgements for name in judgement.parts)
        return cls(
            rewards=np.concatenate([judgement.rewards for judgement in judgements]),
            reasons=tuple(row for judgement in judgements for row in judgement.reasons),
            parts={name: np.concatenate([judgement.part(name) for judgement in judgements]) for name in names},
            messages=tuple(row for judgement in judgements for row in judgement.messages),
            failed=all(judgement.broken for judgement in judgements),
        )

    def select(self, groups: Sequence[int]) -> "Judgement":
        """The named groups, in the order given."""
        selected: Judgement = rows_of(self, list(groups))
        return selected

    def without_ends(self, truncated: NDArray[np.bool_]) -> "Judgement":
        """The judgement with a reward of 0, in all its parts, and the reason "truncated" for the completions that were
        cut, [P, G], whether or not their verifier failed."""
        if not truncated.any():
            return self
        return replace(
            self,
            rewards=np.where(truncated, np.float32(0), self.rewards),
            reasons=_where(truncated, "truncated", self.reasons),
            parts={name: np.where(truncated & ~np.isnan(part), 0, part) for name, part in self.parts.items()},
            messages=self.messages if self.broken else _where(truncated, "", self.messages),
            failed=self.broken,
        )

    @property
    def usual_parts(self) -> dict[str, NDArray[np.float32]]:
        """The parts that most completions have, PARTS at most, by name: a user's function may name any."""
        counts = {name: int((~np.isnan(part)).sum()) for name, part in self.parts.items()}
        kept = sorted(counts, key=lambda name: (-counts[name], name))[:PARTS]
        return {name: self.parts[name] for name in sorted(kept)}

    @property
    def of_programs(self) -> NDArray[np.float32]:
        """[P, G]: the rewards without what a reward model adds to them, of which a pass rate tells."""
        own = self.part(PROGRAM)
        return np.where(np.isnan(own), self.rewards, own)

    def with_scores(self, scores: NDArray[np.float32], cut: NDArray[np.float32], alone: Sequence[bool]) -> "Judgement":
        """The judgement with the scores [P, G] of reward models, weighted, added to its rewards; NaN where none is
        asked. ``cut`` [P, G]: 1 for completions of which a part was scored. ``alone`` [P]: where a program has no
        say."""
        scored = ~np.isnan(scores)
        shared = scored & ~np.array(alone)[:, None]
        own = {PROGRAM: np.where(shared, self.rewards, np.float32(nan))} if shared.any() else {}
        return replace(
            self,
            rewards=np.where(scored, self.rewards + scores, self.rewards),
            parts={**self.parts, **own, SCORED: scores, CUT: cut},
        )

    @property
    def errors(self) -> tuple[str, ...]:
        """The first of the different failures, a line each."""
        return tuple(dict.fromkeys(message for row in self.messages for message in row if message))[:MESSAGES]

    @property
    def given_up(self) -> str:
        """Why a verifier that hangs was not asked any more; nothing where it was asked for every completion."""
        for reasons, messages in zip(self.reasons, self.messages, strict=True):
            if NOT_TRIED in reasons:
                return messages[reasons.index(NOT_TRIED)]
        return ""

    def part(self, name: str) -> NDArray[np.float32]:
        """[P, G], NaN where there is no such part."""
        return self.parts[name] if name in self.parts else np.full_like(self.rewards, nan)


def _where(marked: NDArray[np.bool_], text: str, others: Sequence[Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    """[P] of [G]: ``text`` where it is marked."""
    return tuple(
        tuple(text if here else other for here, other in zip(row, row_of_others, strict=True))
        for row, row_of_others in zip(marked.tolist(), others, strict=True)
    )


def judge(
    problems: Sequence[Problem],
    completions: Sequence[Sequence[str]],
    verifiers: Mapping[str, VerifierSpec],
    home: Path | None = None,
) -> Judgement:
    """Judge G completions for each of P problems; `verifiers` are by problem set, `home` is rlvf's on this machine.

    A verifier that fails gives no reward, not one of 0: see :class:`Judgement`.

    Raises:
        VerifierError: a verifier that has never worked in this process cannot be opened, loaded or reached here. One
            that has worked before, and fails now, fails on these completions.
    """
    verdicts: list[Sequence[Verdict]] = [()] * len(problems)
    rows: dict[VerifierSpec, list[int]] = {}
    for row, problem in enumerate(problems):
        rows.setdefault(verifiers[problem.set], []).append(row)
    for spec, mine in rows.items():
        asked = [problems[row] for row in mine for _ in completions[row]]
        texts = [text for row in mine for text in completions[row]]
        given = iter(_ready(spec, home).judge(asked, texts))
        for row in mine:
            verdicts[row] = [_worth(next(given), spec) for _ in completions[row]]
    return Judgement.of(verdicts)


def _ready(spec: VerifierSpec, home: Path | None, again: bool = False) -> Verifier:
    """The verifier as this process holds it, warmed up; with ``again`` even if it has worked before."""
    try:
        verifier = opened(spec, home)
        if again or verifier not in _worked:
            verifier.warm()
    except ValueError as error:
        raise VerifierError(str(error)) from error
    _worked.add(verifier)
    return verifier


def _worth(verdict: Verdict, spec: VerifierSpec) -> Verdict:
    """The verdict, with `timeout_reward` for a time-out."""
    if spec.timeout_reward is None or verdict.reason != "timeout" or not verdict.error:
        return verdict
    return Verdict(spec.timeout_reward, verdict.reason)


def warm(
    verifiers: Mapping[str, VerifierSpec], problems: Iterable[Problem] = (), home: Path | None = None
) -> tuple[str, ...]:
    """Open the verifier of each set on this machine and try it on one problem of that set, or on TRIED of them where it
    knows a right completion. Returns notes for people, a line each.

    Raises VerifierError with one line for the first that cannot work here, fails on a problem's own target and on an
    empty completion, or finds a problem's own target wrong.
    """
    some = first(problems)
    notes: dict[str, None] = {}
    for name, spec in verifiers.items():
        verifier = _ready(spec, home, again=True)
        if verifier.about:
            notes[f"verifier {spec.name}: {verifier.about}"] = None
        own = [problem for problem in some if problem.set == name]
        if own:
            found = verifier.judge(own[:1] * 2, [spec.example(own[0]), ""])
            if all(verdict.error for verdict in found):
                raise VerifierError(f"{found[0].error} (tried on {own[0].source}; rlvf verify tries more)")
        if spec.declared.example is not None:
            for problem, verdict in zip(own, verifier.judge(own, [spec.example(each) for each in own]), strict=True):
                if not verdict.error and verdict.reward != 1:
                    raise VerifierError(
                        f"{problem.source}: verifier {spec.name!r} finds the target {problem.target[:80]!r} wrong as "
                        f"an answer to itself ({verdict.reason}), so that none can be right: write it as a right "
                        r"completion would, for math in LaTeX with words in \text{}"
                    )
    return tuple(notes)


def first(problems: Iterable[Problem]) -> list[Problem]:
    """The first problems of each set, TRIED at most."""
    sets: dict[str, list[Problem]] = {}
    for problem in problems:
        sets.setdefault(problem.set, []).append(problem)
    return [problem for each in sets.values() for problem in each[:TRIED]]
