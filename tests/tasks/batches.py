"""Batches in the making, of problems that are numbered: what is drawn, sampled and judged."""

from collections.abc import Callable, Sequence

import numpy as np

from infra.cluster.placement import Offer
from rl.judging import Judgement
from rl.records import Problem, Rollouts
from rl.verifiers.spec import VerifierSpec
from tasks.batch.batch_config import BatchConfig
from tasks.batch.collection import Collection
from tasks.batch.lease import Lease, Slice
from tasks.batch.rollout_batch import RolloutBatch
from tasks.sets.problem_set import ProblemSet

ALL = [True] * 1000


def problem_set() -> ProblemSet:
    """The prompt of group i of step k is "k/i"."""
    return ProblemSet(
        name="numbered",
        draw=lambda step, count, skip: [Problem(f"{step}/{i}", str(i), f"n:{i}") for i in range(skip, skip + count)],
        held_out=(),
        verifiers={"": VerifierSpec(name="arithmetic")},
    )


def rollouts(lease: Lease, samples: int) -> Rollouts:
    """Group i has completions of 1 + i % 3 tokens, each of them i."""
    each = [i for i in lease.groups for _ in range(samples)]
    return Rollouts.padded(
        lease.problems,
        [[i] for i in lease.groups],
        [[i] * (1 + i % 3) for i in each],
        logprobs=[[-0.5] * (1 + i % 3) for i in each],
        version=1,
        ended=[i % 2 == 0 for i in each],
        texts=[f"answer {i}" for i in each],
        seconds=0.25,
    )


def whole(sampled: Rollouts, worker: Offer) -> tuple[Rollouts, tuple[Slice, ...]]:
    """A lease that this worker has made alone."""
    made = sampled.made_by(worker.name)
    return made, (Slice(worker, made.makers[0], np.zeros_like(made.lengths), made.lengths),)


def verdicts(lease: Lease, with_signal: Sequence[bool], samples: int) -> Judgement:
    """One right completion in each group that varies, none in the others."""
    rewards = np.zeros((len(lease.groups), samples), np.float32)
    rewards[:, 0] = [with_signal[i] for i in lease.groups]
    return Judgement(rewards, tuple(tuple("right" if reward else "wrong_value" for reward in row) for row in rewards))


def collect(
    config: BatchConfig,
    with_signal: Sequence[bool],
    shuffle: Callable[[list[Lease]], None] = lambda _: None,
    step: int = 5,
) -> tuple[RolloutBatch, list[list[range]]]:
    """The batch, and the groups of the leases of each draw, when none is drawn before all are back, in the order that
    `shuffle` makes."""
    collection = Collection(step, problem_set(), config)
    draws = []
    for leases in collection.draws():
        draws.append([lease.groups for lease in leases])
        back = list(leases)
        shuffle(back)
        for lease in back:
            made = rollouts(lease, config.samples)
            collection.arrive(lease, made)
            collection.judged(lease, made, verdicts(lease, with_signal, config.samples))
    return collection.collected(), draws


def groups(collected: RolloutBatch) -> list[int]:
    return [int(problem.target) for problem in collected.batch.rollouts.problems]


def config(prompts: int = 4, samples: int = 2, oversample: float = 3.0, lease: int = 3) -> BatchConfig:
    return BatchConfig(prompts=prompts, samples=samples, oversample=oversample, lease=lease)
