"""Evaluation on held-out problems: greedy and sampled."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from prefect import task
from prefect.cache_policies import NO_CACHE

from infra.dispatch import Dispatch
from infra.weights import PolicyVersion
from rl.judging import judge
from rl.records import Problem
from tasks import calls
from tasks.calls import GeneratorSpec

LEASE = 64  # problems that a generator gets at a time
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


@task(name="evaluate", task_run_name="evaluate v{version.step}", cache_policy=NO_CACHE)
def evaluate(
    dispatch: Dispatch, spec: GeneratorSpec, version: PolicyVersion, problems: Sequence[Problem]
) -> Evaluation:
    """Solve the problems greedily and with ``spec.samples`` samples each."""
    sampled = _rewards(dispatch, replace(spec, seed=spec.seed + NOISE), version, problems)
    greedy = _rewards(dispatch, replace(spec, samples=1, greedy=True), version, problems)
    return Evaluation(
        step=version.step,
        problems=len(problems),
        greedy=float((greedy == 1).mean()),
        sampled=float((sampled == 1).mean()),
        pass_at_k=float((sampled == 1).any(axis=1).mean()),
        k=spec.samples,
    )


def _rewards(
    dispatch: Dispatch, spec: GeneratorSpec, version: PolicyVersion, problems: Sequence[Problem]
) -> NDArray[np.float32]:
    """[P, G] rewards."""
    parts = [range(at, min(at + LEASE, len(problems))) for at in range(0, len(problems), LEASE)]
    items = [(spec, version, 0, part, [problems[i] for i in part]) for part in parts]
    rewards = {}
    for index, rollouts in dispatch.lease("evaluate", calls.generate, items):
        targets = [problem.target for problem in rollouts.problems]
        rewards[index], _ = dispatch.run("verify", judge, targets, rollouts.texts)
    return np.concatenate([rewards[index] for index in range(len(parts))])
