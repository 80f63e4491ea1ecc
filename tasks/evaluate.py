"""Evaluation on held-out problems: greedy and sampled."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import nan
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from prefect import task
from prefect.cache_policies import NO_CACHE

from infra.dispatch.dispatch import Dispatch
from infra.security.printable import printable
from infra.weights.version import PolicyVersion
from rl.admission import Asked, refusal
from rl.environments.episode import Episode
from rl.environments.sessions import OPEN
from rl.environments.spec import EnvironmentSpec
from rl.judging import BrokenVerifierError, Judgement
from rl.records import Problem, Rollouts
from tasks.batch.batch_config import BatchConfig
from tasks.batch.lease import Lease
from tasks.batch.rollout_batch import mean_reward, pass_rate, turns_of
from tasks.batch.slices import Slices
from tasks.calls.generator import Arguments, Generator
from tasks.mending import Mend, Mending, leased, no_mend
from tasks.sets.problem_set import ProblemSet
from tasks.turns import Episodes, in_turns
from tasks.verify import judged

TRAINED_BY_DEFAULT = BatchConfig()
NOTHING: Mapping[str, NDArray[np.float32]] = MappingProxyType({})
PROMPTS = 64  # that a generator prefills at a time, at most
NOISE = 7919  # added to the seed, so that an evaluation never draws a training step's noise


@dataclass(frozen=True)
class Evaluation:
    """How a policy does on a set of problems."""

    step: int  # the policy version
    problems: int
    greedy: float  # pass@1 of the most likely completion
    sampled: float  # pass@1 of sampled completions
    pass_at_k: float  # share of problems with a right one among k sampled completions
    k: int
    reward: float = nan  # mean of the most likely completions; NaN where an older version did not keep it
    reward_sampled: float = nan  # mean of sampled completions: what training raises
    error_rate: float = 0.0  # share of completions whose verifier failed; they count in no other figure
    sets: Mapping[str, Mapping[str, float]] = field(default_factory=dict)  # the figures of each set, if there are more
    sizes: Mapping[str, int] = field(default_factory=dict)  # and its problems; empty where an older version kept it
    means: Mapping[str, float] = field(default_factory=dict)  # of the rewards' parts, and of turns: docs/metrics.md

    def figures(self) -> dict[str, float]:
        """The figures by the last part of their metric's name."""
        return {
            "reward": self.reward,
            "reward_sampled": self.reward_sampled,
            "pass_at_1": self.greedy,
            "sampled": self.sampled,
            "pass_at_k": self.pass_at_k,
            "error_rate": self.error_rate,
            **self.means,
        }

    @classmethod
    def of(
        cls,
        step: int,
        problems: Sequence[Problem],
        greedy: NDArray[np.float32],
        sampled: NDArray[np.float32],
        programs: tuple[NDArray[np.float32], NDArray[np.float32]] | None = None,
        measures: Mapping[str, NDArray[np.float32]] = NOTHING,
    ) -> "Evaluation":
        """From the rewards of ``problems``: [P, 1] greedy, [P, k] sampled; NaN where no verifier could tell. The
        ``programs``' own are given where reward models add to them. Of ``measures``, [P, 1 or k] each, means are taken,
        NaN aside."""
        known = ~np.isnan(sampled)
        greedily, tried = programs or (greedy, sampled)
        solved = (tried == 1).any(axis=1)[known.any(axis=1)]
        rows: dict[str, list[int]] = {}
        for row, problem in enumerate(problems):
            rows.setdefault(problem.set, []).append(row)
        parts = {
            name: cls.of(
                step,
                [replace(problems[row], set="") for row in mine],
                greedy[mine],
                sampled[mine],
                (greedily[mine], tried[mine]),
                {measure: of[mine] for measure, of in measures.items()},
            ).figures()
            for name, mine in rows.items()
            if len(rows) > 1
        }
        return cls(
            step=step,
            problems=len(problems),
            greedy=pass_rate(greedily),
            sampled=pass_rate(tried),
            pass_at_k=float(solved.mean()) if solved.size else 0.0,
            k=sampled.shape[1],
            reward=mean_reward(greedy),
            reward_sampled=mean_reward(sampled),
            error_rate=float(1 - np.concatenate([known, ~np.isnan(greedy)], axis=1).mean()),
            sets=parts,
            sizes={name: len(rows[name]) for name in parts},
            means={name: float(np.nanmean(of)) for name, of in sorted(measures.items()) if not np.isnan(of).all()},
        )


@task(name="evaluate", task_run_name="evaluate v{version.step}", cache_policy=NO_CACHE)
def evaluate(
    dispatch: Dispatch,
    generator: Generator,
    version: PolicyVersion,
    problems: ProblemSet,
    mend: Mend = no_mend,
    saw: Callable[[Judgement], None] = lambda _: None,
    batch: BatchConfig = TRAINED_BY_DEFAULT,
) -> Evaluation:
    """Solve the held-out problems greedily and with ``generator.samples`` samples each; ``saw`` gets each judgement. A
    lease has at most as many sequences as one of training by ``batch``, which a generator is known to have room for.

    Raises:
        BrokenVerifierError: every completion failed in its verifier, or one took too long again and again.
    """
    asked = version, problems, mend, saw, batch
    sampled, tried = _solved(dispatch, replace(generator, seed=generator.seed + NOISE), *asked)
    greedy, measured = _solved(dispatch, replace(generator, samples=1, greedy=True), *asked)
    own = greedy.of_programs, sampled.of_programs
    measures = measured | {f"{name}_sampled": of for name, of in tried.items()}
    return Evaluation.of(version.step, problems.held_out, greedy.rewards, sampled.rewards, own, measures)


def _solved(
    dispatch: Dispatch,
    generator: Generator,
    version: PolicyVersion,
    problems: ProblemSet,
    mend: Mend,
    saw: Callable[[Judgement], None],
    batch: BatchConfig,
) -> tuple[Judgement, dict[str, NDArray[np.float32]]]:
    """The verdicts, and what is measured of each completion [P, G], NaN where it has none of it."""
    if problems.environment is not None:
        judgement, episodes = _played(dispatch, generator, version, problems, problems.environment, mend, saw, batch)
    else:
        single = replace(generator, interface=None)  # of the environment that training acts on
        judgement, episodes = _judged(dispatch, single, version, problems, mend, saw, batch), ()
    if judgement.broken:
        raise BrokenVerifierError(f"no completion could be judged: {printable(judgement.errors[0])}")
    parts = {f"part_{name}": part for name, part in judgement.usual_parts.items()}
    shape = judgement.rewards.shape
    return judgement, parts | {name: of.reshape(shape) for name, of in turns_of(episodes).items()}


def _judged(
    dispatch: Dispatch,
    generator: Generator,
    version: PolicyVersion,
    problems: ProblemSet,
    mend: Mend,
    saw: Callable[[Judgement], None],
    batch: BatchConfig,
) -> Judgement:
    asked = problems.held_out
    size = _size(generator, batch)
    parts = [range(at, min(at + size, len(asked))) for at in range(0, len(asked), size)]
    judgements = {}

    def arguments(index: int) -> Arguments:
        return version, 0, parts[index], [asked[i] for i in parts[index]], None

    def check(index: int, returned: Rollouts) -> str:
        of = tuple(asked[i] for i in parts[index])
        versions = range(version.step, version.step + 1)
        return refusal(returned, Asked(of, generator.samples, generator.sampling.limit, versions))

    mending = Mending(mend)
    calls = leased(dispatch, "evaluate", generator.generate, arguments, range(len(parts)), check=check, mending=mending)
    for index, rollouts in calls:
        judgements[index] = _seen(judged(dispatch, rollouts, problems), saw)
    return Judgement.join([judgements[index] for index in range(len(parts))])


def _seen(judgement: Judgement, saw: Callable[[Judgement], None]) -> Judgement:
    saw(judgement)
    if given_up := judgement.given_up:
        raise BrokenVerifierError(f"the evaluation was stopped: {given_up}")
    return judgement


def _played(
    dispatch: Dispatch,
    generator: Generator,
    version: PolicyVersion,
    problems: ProblemSet,
    environment: EnvironmentSpec,
    mend: Mend,
    saw: Callable[[Judgement], None],
    batch: BatchConfig,
) -> tuple[Judgement, tuple[Episode, ...]]:
    """The same of episodes [P * G], of as many at a time as verifiers keep open: others would be made again at each
    turn."""
    asked, size, verifiers = problems.held_out, _size(generator, batch), len(dispatch.offers("verify"))
    groups = range(len(asked))
    leases = [Lease(groups[at : at + size], asked[at : at + size]) for at in groups[::size]]
    some = max(1, OPEN * verifiers // (size * generator.samples))
    played = Episodes(dispatch, environment, f"{generator.seed}.{'greedy' * generator.greedy}", generator.samples)
    mending = Mending(mend)
    found: dict[int, Judgement] = {}
    for at in range(0, len(leases), some):
        for lease, rollouts in _played_at_once(dispatch, generator, version, played, leases[at : at + some], mending):
            found[lease.groups.start] = _seen(judged(dispatch, rollouts, problems, played.of(lease)), saw)
    episodes = tuple(episode for lease in leases for episode in played.of(lease))
    return Judgement.join([found[lease.groups.start] for lease in leases]), episodes


def _played_at_once(
    dispatch: Dispatch,
    generator: Generator,
    version: PolicyVersion,
    played: Episodes,
    leases: Sequence[Lease],
    mending: Mending,
) -> Iterator[tuple[Lease, Rollouts]]:
    versions = range(version.step, version.step + 1)
    begun = played.begin(leases)
    slices = Slices(replace(generator, slice_seconds=None), 0, begun, versions, None, lambda _: version)

    def made(indices: Iterable[int], order: tuple[int, ...]) -> Iterator[int]:
        calls = leased(
            dispatch,
            "evaluate",
            slices.generator.generate,
            slices.arguments,
            indices,
            check=slices.check,
            mending=mending,
            order=(0, *order),
            done=slices.take,
        )
        return (index for index, _ in calls)

    return ((lease, rollouts) for lease, rollouts, _ in in_turns(slices, played, made))


def _size(generator: Generator, batch: BatchConfig) -> int:
    """Problems of a lease."""
    return max(1, min(PROMPTS, batch.lease * batch.samples // generator.samples))
