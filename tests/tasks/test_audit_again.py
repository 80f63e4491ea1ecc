"""What is made again because its workers are doubted: by whom, and how often."""

from typing import Any, cast

import numpy as np

from rl.graph import AUDIT
from rl.records import Maker
from tasks.audit import audit
from tasks.batch.collection import Collection
from tasks.batch.lease import Lease, Slice
from tests.tasks.batches import config, problem_set, rollouts
from tests.tasks.test_audit import AUDITS, A, B, C, Cluster
from tests.tasks.test_audit_gaps import made_by, reopened


def test_a_lease_is_made_again_without_all_who_were_doubted_so_far() -> None:
    """Two are watched, and the third cannot audit (it has gone on to a later version, or has not the memory)."""
    cluster = Cluster(A, B, C, c=lambda _: None)
    cluster.exclusions.found_wrong(A, "far off", C)
    cluster.exclusions.found_wrong(B, "far off", C)
    cluster.answers |= {"a": lambda _: None, "b": lambda _: None}
    collection = Collection(3, problem_set(), config(prompts=2, lease=2), [AUDIT])
    lease = Lease(range(2), ())
    times = 0
    while times < 20:  # whoever may have it takes it, but for C, which has a long lease of another batch
        able = next(each for each in (A, B, C) if each.address not in collection.without(lease))
        made_by(able, cluster, collection)
        if not reopened(cluster, collection):
            break
        times += 1
    assert times <= 2, f"made again {times} times"


def test_one_right_slice_does_not_clear_the_others_of_a_worker_that_was_found_wrong() -> None:
    """Its memory is broken: now and then it is right."""
    cluster, none = Cluster(A, B), np.zeros((2, 2), np.int32)
    cluster.exclusions.found_wrong(A, "far off", B)
    # B, which is right, makes -0.5 of every token: of the second tokens A has -1.5
    collection = Collection(3, problem_set(), config(prompts=2, lease=2), [AUDIT])
    draws = collection.draws()  # held
    (lease,) = next(draws)
    made = rollouts(lease, 2)
    made.logprobs[:, :, 1:] = np.where(made.inside[:, :, 1:], np.float32(-1.5), np.float32(0))
    slices = Slice(A, Maker("a"), none, none + 1), Slice(A, Maker("a"), none + 1, made.lengths)
    collection.arrive(lease, made, slices)
    collection.abandon()
    audit.fn(cast("Any", cluster), collection, AUDITS)
    assert reopened(cluster, collection)
