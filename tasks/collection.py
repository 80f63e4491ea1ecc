"""One step's batch in the making: the generate task puts leases in, the verify task takes them out.

Leases come in waves. The first holds the step's prompts; when all its verdicts are in and too few groups have rewards
that differ, the next one draws replacements, up to a bound. What is drawn depends on the verdicts alone, never on when
they came, so the same policy makes the same batch on any cluster.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from queue import SimpleQueue
from threading import Condition
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from infra.security.printable import printable
from rl.judging import BrokenVerifierError, Judgement
from rl.records import Batch, Problem, Rollouts, concatenate
from rl.verifiers.spec import VerifierSpec
from tasks.problem_set import ProblemSet

REASONS = 20  # that are logged apart, of a step and of a run


class BatchConfig(BaseModel):
    """How much one step trains on."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    prompts: int = Field(32, ge=1, description="groups that one update trains on")
    samples: int = Field(8, ge=2, description="completions per prompt (the group size G)")
    refill: float = Field(
        2.0, ge=1, le=100, description="at most this many times prompts are drawn to replace groups without variance"
    )
    lease: int = Field(16, ge=1, description="prompts that a generator gets at a time; a lost worker costs one lease")


@dataclass(frozen=True)
class Lease:
    """Problems handed to one generator."""

    groups: range  # their numbers within the step
    problems: tuple[Problem, ...]


@dataclass(frozen=True)
class RolloutBatch:
    """A finished batch and what was seen on the way. Rates are over everything drawn, not over what is trained on."""

    batch: Batch  # the groups to train on, in order of admission
    drawn: int  # groups
    varied: int  # groups whose rewards differ
    failed: int  # groups with less than two verdicts
    reward: float  # mean over the completions judged
    pass_rate: float  # share of the completions judged that have reward 1
    error_rate: float  # share of completions whose verifier failed
    parts: dict[str, float]  # mean of each part of the reward, over the completions that have it
    sets: dict[str, dict[str, float]]  # figures by problem set; a set of which nothing was judged is left out
    reasons: dict[str, int]  # completions by reason
    tokens: int  # generated
    truncated: float  # share of completions cut at the token limit
    generator_seconds: float  # of all leases together
    everything: Batch  # all groups drawn, in order of admission
    samples: tuple[dict[str, str | float], ...]  # a few rows for people
    refused: int = 0  # leases that came back as what was not asked for, and were done again
    mixed: bool = False  # whether there is more than one problem set
    messages: tuple[tuple[str, ...], ...] = ()  # [P] of [G], of all groups drawn: why a completion was not judged

    @property
    def completions(self) -> int:
        return sum(self.reasons.values())

    def rows(self) -> Iterator[dict[str, Any]]:
        """Every completion drawn, for people and their programs."""
        of, rewards, reasons = self.everything.rollouts, self.everything.rewards.tolist(), self.everything.reasons
        lengths, versions = of.lengths.tolist(), of.versions[:, :, 0].tolist()  # the first token's: the oldest
        for group, problem in enumerate(of.problems):
            for sample, text in enumerate(of.texts[group]):
                yield {
                    "group": group,
                    "prompt": problem.prompt,
                    "target": problem.target,
                    "source": problem.source,
                    "completion": text,
                    "reward": None if math.isnan(rewards[group][sample]) else rewards[group][sample],
                    "reason": reasons[group][sample],
                    "error": self.messages[group][sample] if self.messages else "",
                    "version": versions[group][sample],
                    "tokens": lengths[group][sample],
                }

    def figures(self) -> dict[str, float]:
        """What is logged of it, by metric name."""
        return {
            "reward/mean": self.reward,
            "reward/pass_rate": self.pass_rate,
            "reward/error_rate": self.error_rate,
            **{f"reward/{name}": mean for name, mean in self.parts.items()},
            **{f"reward/{name}/{what}": of for name, by in self.sets.items() for what, of in by.items() if self.mixed},
            "groups/drawn": self.drawn,
            "groups/used": len(self.batch),
            "groups/zero_variance": self.drawn - self.varied - self.failed,
            "groups/failed": self.failed,
            "leases/refused": self.refused,
            "completion/tokens_mean": self.tokens / self.completions,
            "completion/truncated": self.truncated,
            **{f"reasons/{name}": count / self.completions for name, count in counted(self.reasons).items()},
        }


def pass_rate(rewards: NDArray[np.float32]) -> float:
    """Share of the rewards that are 1, of those that are known; 0 where none is."""
    known = rewards[~np.isnan(rewards)]
    return float((known == 1).mean()) if known.size else 0.0


def mean_reward(rewards: NDArray[np.float32]) -> float:
    """Of the rewards that are known; NaN where none is."""
    known = rewards[~np.isnan(rewards)]
    return float(known.mean(dtype=np.float64)) if known.size else math.nan


def by_set(problems: Sequence[Problem], rewards: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """The rewards of each set that has a known one; rewards are [P, G]."""
    rows: dict[str, list[int]] = {}
    for row, problem in enumerate(problems):
        if not np.isnan(rewards[row]).all():
            rows.setdefault(problem.set, []).append(row)
    return {name: rewards[rows[name]] for name in sorted(rows)}


def counted(reasons: Mapping[str, int]) -> dict[str, int]:
    """The most frequent reasons by a name that a metric may have, the rest as `other`: a user's function may give any
    text."""
    names: Counter[str] = Counter()
    for reason, count in sorted(reasons.items(), key=lambda item: (-item[1], item[0])):
        name = re.sub(r"[^\w.-]+", "_", reason, flags=re.ASCII).strip("_.-") or "other"
        names[name if name in names or len(names) < REASONS else "other"] += count
    return dict(names)


def few_reasons(figures: Mapping[str, float], logged: Iterable[str]) -> dict[str, float]:
    """The figures with no more than REASONS names of reasons in a run that has `logged` these metrics: those that came
    first, the rest as `other`. A reason that quotes its completion is another one each time."""
    kept, other = {name for name in logged if name.startswith("reasons/")} - {"reasons/other"}, "reasons/other"
    found: dict[str, float] = {}
    for name, value in figures.items():
        if name.startswith("reasons/") and name != other and len(kept) < REASONS:
            kept.add(name)
        shown = name if not name.startswith("reasons/") or name in kept else other
        found[shown] = found.get(shown, 0.0) + value
    return found


class Collection:
    """See the module's docstring. One thread runs :meth:`waves`, another :meth:`arrivals`."""

    def __init__(self, step: int, problems: ProblemSet, config: BatchConfig) -> None:
        self.step = step
        self.config = config
        self.refused = 0  # leases, see RolloutBatch
        self._problems = problems
        self._drawn = 0
        self._judged: dict[int, tuple[Batch, Judgement]] = {}  # by the first group of the lease
        self._arrived: SimpleQueue[tuple[Lease, Rollouts] | None] = SimpleQueue()
        self._changed = Condition()
        self._abandoned = False

    @property
    def verifiers(self) -> Mapping[str, VerifierSpec]:
        """What judges the problems of each set."""
        return self._problems.verifiers

    def waves(self) -> Iterator[list[Lease]]:
        """The leases to generate, wave by wave; each waits for the verdicts on the one before it."""
        try:
            while count := self._wanted():
                groups = range(self._drawn, self._drawn + count)
                problems = self._problems.draw(self.step, count, self._drawn)
                self._drawn += count
                starts = range(0, count, self.config.lease)
                yield [
                    Lease(groups[at : at + self.config.lease], tuple(problems[at : at + self.config.lease]))
                    for at in starts
                ]
                with self._changed:
                    self._changed.wait_for(lambda: self._abandoned or self._all_judged())
        finally:
            self._arrived.put(None)

    def arrive(self, lease: Lease, rollouts: Rollouts) -> None:
        """A lease came back from its generator."""
        self._arrived.put((lease, rollouts))

    def arrivals(self) -> Iterator[tuple[Lease, Rollouts]]:
        """Leases to judge, as they come in."""
        while (arrived := self._arrived.get()) is not None:
            yield arrived

    def judged(self, lease: Lease, rollouts: Rollouts, judgement: Judgement) -> None:
        """The verdicts on a lease are in."""
        with self._changed:
            self._judged[lease.groups.start] = Batch(rollouts, judgement.rewards, judgement.reasons), judgement
            self._changed.notify_all()

    def abandon(self) -> None:
        """No verdicts will come any more: let the generating side end."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()

    def _all_judged(self) -> bool:
        return sum(len(batch) for batch, _ in self._judged.values()) == self._drawn

    def _wanted(self) -> int:
        """How many groups the next wave holds; 0 when the batch is full or the bound reached."""
        if self._abandoned:
            return 0
        if self._drawn == 0:
            return self.config.prompts
        if all(np.isnan(batch.rewards).all() for batch, _ in self._judged.values()):
            return 0  # no verifier works: see collected
        varied = int(sum(batch.varied.sum() for batch, _ in self._judged.values()))
        missing = self.config.prompts - varied
        bound = int(self.config.prompts * self.config.refill) - self._drawn
        # as many as should give what is missing at the rate seen so far
        likely = ceil(missing * self._drawn / max(varied, 1))
        return max(0, min(likely, bound))

    def collected(self) -> RolloutBatch:
        """The finished batch: the first groups that vary, in order of admission.

        Raises:
            BrokenVerifierError: every completion failed in its verifier.
        """
        in_order = [self._judged[start] for start in sorted(self._judged)]
        everything = concatenate([batch for batch, _ in in_order])
        judgement = Judgement.join([judgement for _, judgement in in_order])
        rollouts = everything.rollouts
        unknown = np.isnan(everything.rewards)
        if unknown.all():
            why = printable(judgement.errors[0])  # Prefect's own commands print what ends a run as it is
            raise BrokenVerifierError(f"no completion of step {self.step} could be judged: {why}")
        varied = everything.varied.nonzero()[0]
        used = [int(group) for group in varied[: self.config.prompts]]
        reasons = Counter(reason for row in everything.reasons for reason in row)
        return RolloutBatch(
            batch=everything.select(used),
            drawn=len(everything),
            varied=len(varied),
            failed=int(((~unknown).sum(axis=1) < 2).sum()),
            reward=float(np.nanmean(everything.rewards)),
            pass_rate=pass_rate(everything.rewards),
            error_rate=float(unknown.mean()),
            parts={
                name: float(np.nanmean(part)) for name, part in sorted(judgement.parts.items()) if (part == part).any()
            },
            sets={
                name: {"mean": mean_reward(rewards), "pass_rate": pass_rate(rewards)}
                for name, rewards in by_set(rollouts.problems, everything.rewards).items()
            },
            messages=judgement.messages,
            refused=self.refused,
            mixed=len(self._problems.verifiers) > 1,
            reasons=dict(reasons),
            tokens=rollouts.generated_tokens,
            truncated=float(1 - rollouts.ended.mean()),
            generator_seconds=rollouts.seconds,
            everything=everything,
            samples=tuple(
                {
                    "prompt": rollouts.problems[group].prompt,
                    "target": rollouts.problems[group].target,
                    "completion": rollouts.texts[group][0],
                    "reward": float(everything.rewards[group, 0]),
                    "reason": everything.reasons[group][0],
                    "source": rollouts.problems[group].source,
                }
                for group in range(min(8, len(everything)))
            ),
        )
