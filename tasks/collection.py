"""One step's batch in the making: the generate task puts leases in, the verify task takes them out.

Leases come in waves. The first holds the step's prompts; when all its verdicts are in and too few groups have rewards
that differ, the next one draws replacements, up to a bound. What is drawn depends on the verdicts alone, never on when
they came, so the same policy makes the same batch on any cluster.
"""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil
from queue import SimpleQueue
from threading import Condition
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from rl.records import Batch, Problem, Rollouts, concatenate
from tasks.problem_set import ProblemSet


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
class Collected:
    """A finished batch and what was seen on the way. Rates are over everything drawn, not over what is trained on."""

    batch: Batch  # the groups to train on, in order of admission
    drawn: int  # groups
    varied: int  # groups whose rewards differ
    reward: float  # mean
    pass_rate: float  # share of completions with reward 1
    reasons: dict[str, int]  # completions by reason
    tokens: int  # generated
    truncated: float  # share of completions cut at the token limit
    generator_seconds: float  # of all leases together
    everything: Batch  # all groups drawn, in order of admission
    samples: tuple[dict[str, str | float], ...]  # a few rows for people

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
                    "version": versions[group][sample],
                    "tokens": lengths[group][sample],
                }

    def figures(self) -> dict[str, float]:
        """What is logged of it, by metric name."""
        return {
            "reward/mean": self.reward,
            "reward/pass_rate": self.pass_rate,
            "groups/drawn": self.drawn,
            "groups/used": len(self.batch),
            "groups/zero_variance": self.drawn - self.varied,
            "completion/tokens_mean": self.tokens / self.completions,
            "completion/truncated": self.truncated,
            **{f"reasons/{reason}": count / self.completions for reason, count in self.reasons.items()},
        }


class Collection:
    """See the module's docstring. One thread runs :meth:`waves`, another :meth:`arrivals`."""

    def __init__(self, step: int, problems: ProblemSet, config: BatchConfig) -> None:
        self.step = step
        self.config = config
        self._problems = problems
        self._drawn = 0
        self._judged: dict[int, Batch] = {}  # by the first group of the lease
        self._arrived: SimpleQueue[tuple[Lease, Rollouts] | None] = SimpleQueue()
        self._changed = Condition()
        self._abandoned = False

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

    def judged(
        self, lease: Lease, rollouts: Rollouts, rewards: NDArray[np.float32], reasons: Sequence[Sequence[str]]
    ) -> None:
        """The verdicts on a lease are in."""
        with self._changed:
            self._judged[lease.groups.start] = Batch(rollouts, rewards, tuple(map(tuple, reasons)))
            self._changed.notify_all()

    def abandon(self) -> None:
        """No verdicts will come any more: let the generating side end."""
        with self._changed:
            self._abandoned = True
            self._changed.notify_all()

    def _all_judged(self) -> bool:
        return sum(len(batch) for batch in self._judged.values()) == self._drawn

    def _wanted(self) -> int:
        """How many groups the next wave holds; 0 when the batch is full or the bound reached."""
        if self._abandoned:
            return 0
        if self._drawn == 0:
            return self.config.prompts
        varied = int(sum(batch.varied.sum() for batch in self._judged.values()))
        missing = self.config.prompts - varied
        bound = int(self.config.prompts * self.config.refill) - self._drawn
        # as many as should give what is missing at the rate seen so far
        likely = ceil(missing * self._drawn / max(varied, 1))
        return max(0, min(likely, bound))

    def collected(self) -> Collected:
        """The finished batch: the first groups that vary, in order of admission."""
        everything = concatenate([self._judged[start] for start in sorted(self._judged)])
        rollouts = everything.rollouts
        varied = everything.varied.nonzero()[0]
        used = [int(group) for group in varied[: self.config.prompts]]
        reasons = Counter(reason for row in everything.reasons for reason in row)
        return Collected(
            batch=everything.select(used),
            drawn=len(everything),
            varied=len(varied),
            reward=float(everything.rewards.mean()),
            pass_rate=float((everything.rewards == 1).mean()),
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
