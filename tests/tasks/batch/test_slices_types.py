"""Slices by a worker whose arrays are of smaller types than ours: what others draw behind them is not harmed."""

from dataclasses import replace

import numpy as np

from infra.cluster.placement import Offer
from infra.weights.version import PolicyVersion
from rl.config import PolicyConfig, SamplingConfig
from rl.records import Problem, Rollouts
from tasks.batch.lease import Lease
from tasks.batch.slices import Slices
from tasks.calls.generator import Generator

LIMIT = 400
GENERATOR = Generator(PolicyConfig(), SamplingConfig(max_tokens=LIMIT), samples=1, seed=0, slice_seconds=1.0)
LEASE = Lease(range(4, 5), (Problem("one", "1", "t:1"),))
ODD, FINE = Offer("tcp://odd", "odd", {}), Offer("tcp://fine", "fine", {})


def slices() -> Slices:
    return Slices(GENERATOR, 5, [LEASE], range(4, 6), 1000, lambda _: PolicyVersion(5, "v5", ""))


def part(tokens: list[int], ended: bool) -> Rollouts:
    return Rollouts.padded(
        LEASE.problems,
        [[7]],
        [tokens],
        logprobs=[[-1.2345678] * len(tokens)],
        versions=[[5] * len(tokens)],
        ended=ended,
    )


def test_tokens_that_another_worker_draws_are_those_it_drew() -> None:
    under_way, first = slices(), part([1, 2], ended=False)
    odd = replace(first, tokens=first.tokens.astype(np.uint8))
    if under_way.check(0, odd):
        return  # that is fine, too
    under_way.take(0, odd, ODD)
    under_way.arguments(0)
    second = part([300, 999], ended=True)
    assert under_way.check(0, second) == ""
    assert under_way.take(0, second, FINE)
    assert under_way.whole(0)[0].tokens.ravel().tolist() == [1, 2, 300, 999]


def test_what_is_admitted_can_be_joined() -> None:
    under_way = slices()
    for count in (200, 100):
        one = part([3] * count, ended=False)
        odd = replace(one, lengths=one.lengths.astype(np.uint8))
        if under_way.check(0, odd):
            return  # that is fine, too
        under_way.take(0, odd, ODD)  # in the thread of all leases: what it raises ends every batch
