"""Verification: every lease is judged as it comes in, spread over the verifiers."""

from math import ceil

import numpy as np
from prefect import task
from prefect.cache_policies import NO_CACHE

from infra.dispatch import Dispatch
from infra.placement import workers_with
from rl.judging import judge
from tasks.collection import Collected, Collection


@task(name="verify", task_run_name="verify {collection.step}", cache_policy=NO_CACHE)
def verify(dispatch: Dispatch, collection: Collection) -> Collected:
    """Judge the collection's leases until it is complete, and return it."""
    try:
        for lease, rollouts in collection.arrivals():
            targets = [problem.target for problem in rollouts.problems]
            verifiers = len(workers_with(dispatch.client, dispatch.placement.tags("verify")))
            share = ceil(len(targets) / max(1, verifiers))
            parts = [
                (targets[at : at + share], rollouts.texts[at : at + share]) for at in range(0, len(targets), share)
            ]
            verdicts = dict(dispatch.lease("verify", judge, parts, priority=-collection.step))
            rewards = np.concatenate([verdicts[part][0] for part in range(len(parts))])
            reasons = [row for part in range(len(parts)) for row in verdicts[part][1]]
            collection.judged(lease, rollouts, rewards, reasons)
    finally:
        collection.abandon()
    return collection.collected()
