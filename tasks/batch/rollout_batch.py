"""A step's batch when it is complete, and what was seen on the way."""

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from rl.audit import Audited
from rl.audit import figures as audit_figures
from rl.environments.episode import Episode
from rl.judging import Judgement
from rl.records import Batch, Problem, Rollouts
from tasks.batch.lease import Slice, moved

REASONS = 20  # that are logged apart, of a step and of a run
SAMPLES = 8  # completions that are shown to people, of a step
TURNS = 20  # whose rewards are logged apart


@dataclass(frozen=True)
class RolloutBatch:
    """A finished batch and what was seen on the way. Rates are over everything generated, not over
    what is trained on."""

    batch: Batch  # the groups to train on, in order of admission
    groups_generated: int
    groups_with_signal: int  # whose rewards differ
    groups_failed: int  # with less than two verdicts
    reward: float  # mean over the completions judged
    pass_rate: float  # share of the completions judged that have reward 1
    error_rate: float  # share of completions whose verifier failed
    parts: dict[str, float]  # mean of each part of the reward, over the completions that have it
    sets: dict[str, dict[str, float]]  # figures by problem set; a set of which nothing was judged is left out
    reasons: dict[str, int]  # completions by reason
    tokens: int  # generated; observations are none
    truncated: float  # share of completions cut at the token limit
    everything: Batch  # all groups generated, in order of admission
    samples: tuple[dict[str, str | float], ...]  # a few rows for people
    refused: int = 0  # leases that came back as what was not asked for, and were done again
    redrawn: int = 0  # groups that were made again, as audits have found their worker wrong
    audits: tuple[Audited, ...] = ()
    mixed: bool = False  # whether there is more than one problem set
    made: tuple[tuple[Slice, ...], ...] = ()  # by whom, lease by lease; () where nobody has said
    episodes: tuple[tuple[Episode, ...], ...] = ()  # lease by lease, of each [P * G]
    messages: tuple[tuple[str, ...], ...] = ()  # [P] of [G], of all groups: why a completion was not judged

    @classmethod
    def of(cls, everything: Batch, judgement: Judgement, used: Sequence[int]) -> Self:
        """The batch of these groups, out of all that were generated and judged; what else was seen is added to it."""
        rollouts, rewards = everything.rollouts, everything.rewards
        unknown = np.isnan(rewards)
        passed = by_set(rollouts.problems, judgement.of_programs)
        return cls(
            batch=everything.select(used),
            groups_generated=len(everything),
            groups_with_signal=int(everything.with_signal.sum()),
            groups_failed=int(((~unknown).sum(axis=1) < 2).sum()),
            reward=mean_reward(rewards),
            pass_rate=pass_rate(judgement.of_programs),
            error_rate=float(unknown.mean()),
            parts={name: mean_reward(part) for name, part in judgement.usual_parts.items() if (part == part).any()},
            sets={
                name: {"mean": mean_reward(of_set), "pass_rate": pass_rate(passed[name])}
                for name, of_set in by_set(rollouts.problems, rewards).items()
            },
            messages=judgement.messages,
            reasons=dict(Counter(reason for row in everything.reasons for reason in row)),
            tokens=rollouts.generated_tokens,
            truncated=float(1 - rollouts.ended.mean()),
            everything=everything,
            samples=tuple(
                {
                    "prompt": problem.shown,
                    "target": problem.target,
                    "completion": rollouts.texts[group][0],
                    "reward": float(rewards[group, 0]),
                    "reason": everything.reasons[group][0],
                    "source": problem.source,
                }
                for group, problem in enumerate(rollouts.problems[:SAMPLES])
            ),
        )

    @property
    def completions(self) -> int:
        return sum(self.reasons.values())

    def rows(self) -> Iterator[dict[str, Any]]:
        """A row for each completion, as `rollouts/` keeps them."""
        of, rewards, reasons = self.everything.rollouts, self.everything.rewards.tolist(), self.everything.reasons
        alone = (of.trained == of.inside).all(axis=2)
        episodes = iter([episode for lease in self.episodes for episode in lease])
        lengths, versions = of.trained_lengths.tolist(), oldest_and_newest(of)[0].tolist()
        for group, problem in enumerate(of.problems):
            for sample, text in enumerate(of.texts[group]):
                yield {
                    "group": group,
                    "prompt": problem.shown,
                    "target": problem.target,
                    "source": problem.source,
                    "completion": text,
                    "reward": None if math.isnan(rewards[group][sample]) else rewards[group][sample],
                    "reason": reasons[group][sample],
                    "error": self.messages[group][sample] if self.messages else "",
                    "version": versions[group][sample],
                    "tokens": lengths[group][sample],
                    "worker": of.makers[group].worker if of.makers else "",
                    **({} if alone[group][sample] else {"trained": runs(of.trained[group, sample])}),
                    **conversation(next(episodes, None)),
                }

    def figures(self) -> dict[str, float]:
        """Its metrics by name."""
        return {
            "reward/mean": self.reward,
            "reward/pass_rate": self.pass_rate,
            "reward/error_rate": self.error_rate,
            **({} if (greedy := self.everything.baseline) is None else {"reward/greedy": mean_reward(greedy)}),
            **{f"reward/{name}": mean for name, mean in self.parts.items()},
            **{f"reward/{name}/{what}": of for name, by in self.sets.items() for what, of in by.items() if self.mixed},
            "groups/generated": self.groups_generated,
            "groups/zero_variance": self.groups_generated - self.groups_with_signal - self.groups_failed,
            "groups/failed": self.groups_failed,
            "leases/refused": self.refused,
            "leases/prompts": self.groups_generated / max(1, len(self.made)),
            "leases/slices": sum(map(len, self.made)) / max(1, len(self.made)),
            **audit_figures(self.audits),
            **episode_figures([episode for lease in self.episodes for episode in lease]),
            **({"audit/redrawn": self.redrawn} if self.audits or self.redrawn else {}),
            "completion/tokens_mean": self.tokens / self.completions,
            "completion/truncated": self.truncated,
            "completion/moved": sum(map(moved, self.made)) / self.completions,
            "staleness/swapped": swapped(self.everything.rollouts),
            **{f"reasons/{name}": count / self.completions for name, count in counted(self.reasons).items()},
        }


def conversation(episode: Episode | None) -> dict[str, str]:
    """The messages of an episode, for a row; nothing of what is not played."""
    return {"messages": json.dumps(episode.messages)} if episode is not None and episode.problem.played else {}


def episode_figures(episodes: Sequence[Episode]) -> dict[str, float]:
    """Turns of the policy's in an episode, calls of them, the share of these that were refused, and seconds that a turn
    is acted on; the mean reward of each turn, where turns have any."""
    episodes = [episode for episode in episodes if episode.problem.played]
    if not episodes:
        return {}
    turns = [turn for episode in episodes for turn in episode.turns]
    calls = sum(len(action) if isinstance(action, tuple) else 1 for action, _ in turns)
    by_turn = [
        [episode.turns[at][1].reward for episode in episodes if len(episode.turns) > at]
        for at in range(min(TURNS, max(len(episode.turns) for episode in episodes)))
    ]
    return {
        **{f"reward/turn/{at}": fmean(rewards) for at, rewards in enumerate(by_turn, 1) if any(map(any, by_turn))},
        "turns/mean": len(turns) / len(episodes),
        "tools/calls": calls / len(episodes),
        "tools/errors": sum(outcome.refused for _, outcome in turns) / max(1, calls),
        "tools/seconds": sum(outcome.seconds for _, outcome in turns) / max(1, len(turns)),
    }


def turns_of(episodes: Sequence[Episode]) -> dict[str, NDArray[np.float32]]:
    """[P * G] turns of the policy's in each episode, and calls of it that were refused; NaN of what is not played."""
    if not episodes:
        return {}

    def of_each(count: Callable[[Episode], int]) -> NDArray[np.float32]:
        return np.array([count(each) if each.problem.played else math.nan for each in episodes], np.float32)

    return {
        "turns": of_each(lambda episode: len(episode.turns)),
        "refused_calls": of_each(lambda episode: sum(outcome.refused for _, outcome in episode.turns)),
    }


def swapped(rollouts: Rollouts) -> float:
    """Share of the completions that more than one version has drawn."""
    oldest, newest = oldest_and_newest(rollouts)
    return float((oldest != newest).mean())


def oldest_and_newest(rollouts: Rollouts) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
    """[P, G] the versions that have drawn the first and the last token of each completion."""
    trained = rollouts.trained
    first, last = trained.argmax(axis=2), trained.shape[2] - 1 - trained[..., ::-1].argmax(axis=2)
    oldest, newest = (np.take_along_axis(rollouts.versions, at[..., None], axis=2)[..., 0] for at in (first, last))
    return oldest, newest


def runs(trained: NDArray[np.bool_]) -> str:
    """[T] flags as runs of those that are set, `first:end` of each, for a row, which holds no lists."""
    edges = np.flatnonzero(np.diff(trained, prepend=False, append=False))
    return " ".join(f"{first}:{end}" for first, end in edges.reshape(-1, 2))


def pass_rate(rewards: NDArray[np.float32]) -> float:
    """Share of the rewards that are 1, of those that are known; 0 where none is."""
    known = rewards[~np.isnan(rewards)]
    return float((known == 1).mean()) if known.size else 0.0


def mean_reward(rewards: NDArray[np.float32]) -> float:
    """Mean of the known rewards; NaN where none is known."""
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
    """``figures`` with at most REASONS metrics of reasons in a run, whose metrics so far are `logged`: further reasons
    are counted as `other`. A reason that quotes its completion would be a new metric each time."""
    kept, other = {name for name in logged if name.startswith("reasons/")} - {"reasons/other"}, "reasons/other"
    found: dict[str, float] = {}
    for name, value in figures.items():
        if name.startswith("reasons/") and name != other and len(kept) < REASONS:
            kept.add(name)
        shown = name if not name.startswith("reasons/") or name in kept else other
        found[shown] = found.get(shown, 0.0) + value
    return found
