"""What is made again once an audit has found a worker wrong, and what that takes with it."""

from typing import Any, cast

from infra.cluster.placement import Offer
from rl.graph import AUDIT
from tasks.audit import audit, doubts
from tasks.batch.collection import Collection
from tests.tasks.batches import config, problem_set, rollouts, verdicts, whole
from tests.tasks.test_audit import AUDITS, A, B, C, Cluster, off


def made_by(maker: Offer, cluster: Cluster, collection: Collection) -> None:
    """Every lease of the next draw is made by this worker, and audited."""
    draws = collection.draws()
    for lease in next(draws):
        collection.arrive(lease, *whole(rollouts(lease, 2), maker))
    collection.abandon()
    audit.fn(cast("Any", cluster), collection, AUDITS)


def reopened(cluster: Cluster, collection: Collection) -> bool:
    return collection.reopen(cluster.exclusions.is_distrusted, doubts(cast("Any", cluster), AUDITS))


def test_a_lease_that_was_found_wrong_does_not_come_back_from_the_same_worker_without_an_audit() -> None:
    cluster = Cluster(A, B, b=off(1), third=off(1))
    collection = Collection(3, problem_set(), config(prompts=2, lease=2), [AUDIT])
    made_by(A, cluster, collection)
    assert reopened(cluster, collection)
    assert cluster.exclusions.is_watched(A)
    cluster.answers["b"] = lambda _: None  # it has gone on to a later version, as in flight it does
    made_by(A, cluster, collection)  # nobody keeps A from making it again
    assert reopened(cluster, collection)  # or what A has made again is trained on


def test_what_a_worker_that_was_barred_makes_after_a_restart_waits_for_an_audit_that_it_passes() -> None:
    cluster = Cluster(A, B, b=lambda _: None)
    for _ in range(2):
        cluster.exclusions.found_wrong(A, "far off", B)
    again = Offer("tcp://a-again", "a", {})
    cluster.generators = (again, B)
    collection = Collection(3, problem_set(), config(prompts=2, lease=2), [AUDIT])
    made_by(again, cluster, collection)
    assert reopened(cluster, collection)


def test_two_that_were_barred_for_the_same_fault_do_not_clear_each_other() -> None:
    """Both agree, and both are as wrong as before: nobody else has looked."""
    cluster = Cluster(A, B)
    for worker in (A, B):
        for _ in range(2):
            cluster.exclusions.found_wrong(worker, "a broken package", C)
    cluster.generators = again = tuple(Offer(f"tcp://{worker.name}-again", worker.name, {}) for worker in (A, B))
    collection = Collection(3, problem_set(), config(prompts=2, lease=2), [AUDIT])
    made_by(again[0], cluster, collection)
    assert [cluster.exclusions.is_watched(worker) for worker in again] == [True, True]


def test_how_groups_are_leased_does_not_follow_from_verdicts_that_were_made_again() -> None:
    """A lease is scored as a whole: among others a group has other bits under the reference model."""

    def leased(first: Offer) -> dict[int, range]:
        """The lease of each group that is trained on; a lease by B has no group whose rewards differ."""
        collection = Collection(0, problem_set(), config(prompts=4, lease=4))

        def made(first: Offer) -> None:
            for leases in collection.draws():
                for lease in leases:
                    maker = first if lease.groups.start == 0 else A
                    collection.arrive(lease, *whole(rollouts(lease, 2), maker))
                    with_signal = [maker == A and i != 1 for i in range(12)]
                    collection.judged(lease, rollouts(lease, 2), verdicts(lease, with_signal, 2))
            collection.abandon()

        made(first)
        if collection.reopen(lambda maker: maker == B):
            made(A)
        used = [int(problem.target) for problem in collection.collected().batch.rollouts.problems]
        leases = [each.lease for each in collection._made.values()]
        return {i: lease.groups for lease in leases for i in lease.groups if i in used}

    assert leased(B) == leased(A)


def test_that_nobody_is_known_to_be_wrong_is_said_once_of_two_workers_however_far_apart_they_are() -> None:
    by = iter((1.0, 1.1, 1.2, 1.3))
    cluster = Cluster(A, B, b=lambda rollouts: off(next(by))(rollouts), trainer=A)
    collection = Collection(3, problem_set(), config(prompts=8, lease=2), [AUDIT])
    made_by(A, cluster, collection)
    assert len(cluster.said) == 1, cluster.said  # docs/leases.md: "a line says so once"
