"""Audits of leases that several workers have made."""

from dataclasses import replace
from typing import Any, cast

import numpy as np

from rl.audit import AuditConfig
from rl.graph import AUDIT
from rl.records import Maker, Rollouts
from tasks.audit import audit
from tasks.batch.collection import Collection
from tasks.batch.lease import Lease, Slice
from tests.tasks.batches import config, problem_set, rollouts, whole
from tests.tasks.test_audit import AUDITS, A, B, C, Cluster, figures, raising


def test_of_a_lease_in_slices_one_is_audited_and_whoever_made_it_answers_for_its_tokens_alone() -> None:
    leases = [Lease(range(at, at + 2), ()) for at in range(0, 200, 2)]
    none = np.zeros((2, 2), np.int32)
    slices = [Slice(by, Maker(by.name), none + at, none + at + 1) for at, by in enumerate((A, B))]
    cluster = Cluster(A, B, C)
    chosen = [one for lease in leases for one in AUDITS.due(cast("Any", cluster), 3, lease, slices)]
    assert len(chosen) == len(leases)
    assert 30 < sum(one is slices[0] for one in chosen) < 70
    assert {id(one) for one in chosen} == {id(one) for one in slices}

    collection = Collection(3, problem_set(), config(prompts=2, lease=2), [AUDIT])
    (lease,) = next(collection.draws())
    made = Rollouts.padded(lease.problems, [[1]] * 2, [[3, 4]] * 4, logprobs=[[-0.5, -1.5]] * 4, version=1)
    collection.arrive(lease, made, tuple(slices))
    for one in slices:
        AUDITS.of(cast("Any", cluster), collection, lease, made, one)
    a, b = collection._audits
    assert (a.maker.worker, a.wrong) == ("a", "")  # by all others, its tokens have -0.5
    assert (b.maker.worker, b.wrong) == ("b", "maker")
    assert cluster.exclusions.is_watched(B)
    assert not cluster.exclusions.is_watched(A)
    assert collection._made[0].is_wrong


def test_of_one_that_was_found_wrong_every_slice_is_audited() -> None:
    cluster, lease, none = Cluster(A, B), Lease(range(90, 92), ()), np.zeros((2, 2), np.int32)
    whose = B, A, C, A
    slices = [Slice(by, Maker(by.name), none + at, none + at + 1) for at, by in enumerate(whose)]
    unlikely = replace(AUDITS, config=AuditConfig(share=0, bound=0.1))
    assert unlikely.due(cast("Any", cluster), 3, lease, slices) == []
    cluster.exclusions.found_wrong(A, "far off", B)
    assert unlikely.due(cast("Any", cluster), 3, lease, slices) == [slices[1], slices[3]]
    assert unlikely.due(cast("Any", cluster), 3, lease, slices[:1]) == []
    assert AUDITS.due(cast("Any", cluster), 3, lease, ()) == []


def test_a_slice_without_a_token_of_the_policy_s_needs_no_audit() -> None:
    """What was observed left it no room: nobody is asked, and it counts as right, whoever made it."""
    cluster = Cluster(A, B, b=raising(AssertionError("it was asked")))
    cluster.exclusions.found_wrong(A, "for a reason", B)
    collection = Collection(3, problem_set(), config(prompts=8, lease=2), [AUDIT])
    draws = collection.draws()
    for lease in next(draws):
        sampled, (by_b,) = whole(rollouts(lease, 2), B)
        last = sampled.lengths - 1
        observed = np.arange(sampled.tokens.shape[2]) == last[:, :, None]
        slices = replace(by_b, end=last), Slice(A, by_b.maker, last, sampled.lengths)
        collection.arrive(lease, replace(sampled, trained=sampled.trained & ~observed), slices)
    collection.abandon()
    audit.fn(cast("Any", cluster), collection, AUDITS)
    is_watched = cluster.exclusions.is_watched
    assert is_watched(A)
    assert not collection.reopen(cluster.exclusions.is_distrusted, is_watched)
    assert figures(collection) == {}
