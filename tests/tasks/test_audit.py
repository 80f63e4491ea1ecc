"""What an audit does with what workers answer: who is found wrong, what is made again, and what stays as it is."""

from collections.abc import Callable
from dataclasses import replace
from threading import Semaphore, Thread
from typing import Any, cast

import numpy as np
import pytest

from infra.cluster.exclusions import Exclusions
from infra.cluster.placement import Offer, PlacementConfig
from infra.dispatch.calls import SchedulerLostError
from infra.dispatch.durations import Durations
from infra.storage.manifest import NotThere
from infra.weights.version import PolicyVersion
from rl.audit import AuditConfig, AuditScores, draws
from rl.audit import figures as of_audits
from rl.config import PolicyConfig, SamplingConfig
from rl.graph import AUDIT
from rl.records import Maker, Rollouts
from tasks.audit import Audits, audit
from tasks.batch.collection import Collection
from tasks.batch.lease import Lease
from tasks.calls.generator import Generator
from tasks.calls.scorer import Referee
from tests.tasks.batches import config, problem_set, rollouts, whole

GENERATOR = Generator(PolicyConfig(), SamplingConfig(max_tokens=3), samples=2, seed=0)
AUDITS = Audits(
    AuditConfig(share=1, bound=0.1),
    GENERATOR,
    Referee(GENERATOR.weights, 1.0),
    lambda step: PolicyVersion(step, f"v{step}", ""),
    lambda step: PolicyVersion(step, f"v{step}", ""),
)
A, B, C = (Offer(f"tcp://{name}", name, {}) for name in "abc")
TRAINER = Offer("tcp://trainer", "trainer", {})
Answer = Callable[[Rollouts], Any]


def off(by: float) -> Answer:
    """Log-probs that are off by so many nats."""
    return lambda rollouts: AuditScores(np.where(rollouts.inside, np.float32(-0.5 - by), np.float32(0)), "bfloat16")


def raising(error: Exception) -> Answer:
    def answer(_: Rollouts) -> Any:
        raise error

    return answer


class Cluster:
    """Stands in for a Dispatch: generators and a trainer that answer as they are told."""

    def __init__(
        self, *generators: Offer, third: Answer | None = None, trainer: Offer = TRAINER, **answers: Answer
    ) -> None:
        self.generators, self.trainer, self.third, self.answers = generators, trainer, third or off(0), answers
        self.said: list[str] = []
        self.asked: list[str] = []
        self.say = self.said.append
        self.exclusions = Exclusions(PlacementConfig(), self.say)
        self.took, self.late_after, self.silent = Durations(), 10.0, set[str]()

    def offers(self, call: str) -> list[Offer]:
        return [self.trainer] if call == "train" else list(self.generators)

    def ask(self, call: str, function: Any, version: PolicyVersion, given: Rollouts, *, worker: Offer, **_: Any) -> Any:
        assert (call, function.__func__, version.step) == ("generate", Generator.score, 1)
        assert (given.problems, given.makers, given.logprobs.size) == ((), (), 0)  # what it needs not
        self.asked.append(worker.name)
        return self.answers.get(worker.name, off(0))(given)

    def run(self, call: str, function: Any, version: PolicyVersion, given: Rollouts) -> Any:
        assert (call, function, version.step) == ("train", AUDITS.referee.score, 1)
        found = self.third(given)
        return found.logprobs if isinstance(found, AuditScores) else found


def audited(cluster: Cluster, maker: Offer = A, audits: Audits = AUDITS, times: int = 1) -> Collection:
    """A collection of four leases, each of which was audited so often."""
    collection = Collection(3, problem_set(), config(prompts=8, lease=2), [AUDIT])
    draws = collection.draws()
    for lease in next(draws):
        sampled = rollouts(lease, 2)
        for _ in range(times):
            collection.arrive(lease, *whole(sampled, maker))
    collection.abandon()
    audit.fn(cast("Any", cluster), collection, audits)
    return collection


def figures(collection: Collection) -> dict[str, float]:
    return of_audits(collection._audits)


def again(collection: Collection, cluster: Cluster) -> list[Lease]:
    """What is made again."""
    if not collection.reopen(cluster.exclusions.is_distrusted):
        return []
    return next(collection.draws())


def test_workers_that_agree_are_left_alone() -> None:
    cluster = Cluster(A, B, b=off(0.01))
    collection = audited(cluster)
    kl = pytest.approx(np.expm1(-0.01) + 0.01, rel=1e-3)
    assert figures(collection) == {
        "audit/leases": 4,
        "audit/missed": 0,
        "audit/disagreed": 0,
        "audit/kl": kl,
        "audit/workers/a/b": kl,
        "audit/dtypes/unknown/bfloat16": kl,
    }
    assert again(collection, cluster) == []
    assert cluster.said == []


def test_a_worker_whose_rollouts_nobody_else_can_explain_is_out_and_all_that_it_made_is_made_again() -> None:
    cluster = Cluster(A, B, b=off(1), third=off(1))
    collection = audited(cluster)
    assert figures(collection)["audit/disagreed"] == 4
    assert [lease.groups for lease in again(collection, cluster)] == [range(at, at + 2) for at in range(0, 8, 2)]
    assert cluster.exclusions.distrusted.keys() == {A.address}
    assert not cluster.exclusions.is_watched(B)
    why = (
        "a and b disagree about a lease of step 4: 0.368 nats per token, 0.1 are allowed; they are 0.368 and 0 from "
        "the trainer's worker"
    )
    assert set(cluster.said) >= {f"a was found wrong by an audit: {why}"}
    assert cluster.exclusions.distrusted[A.address] == ("a", why)


def test_one_lease_that_was_found_wrong_is_made_again_and_its_worker_is_watched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    others = Semaphore(0)  # leases that are known not to be audited, as their worker was not watched yet

    def after_the_others(rollouts: Rollouts) -> Any:
        assert all(others.acquire(timeout=30) for _ in range(3))
        return off(1)(rollouts)

    cluster = Cluster(A, B, b=after_the_others, third=off(1))
    is_watched = cluster.exclusions.is_watched

    def asked(worker: Offer) -> bool:
        watched = is_watched(worker)
        if worker == A:
            others.release()
        return watched

    monkeypatch.setattr(cluster.exclusions, "is_watched", asked)
    collection = audited(cluster, audits=only_first())
    assert [lease.groups for lease in again(collection, cluster)] == [range(2)]
    assert cluster.exclusions.distrusted == {}
    lease = Lease(range(90, 91), problem_set().draw(3, 1, 90))
    assert only_first().due(cast("Any", cluster), 3, lease, whole(rollouts(lease, 2), A)[1])


def only_first() -> Audits:
    """With a share that holds the first of the leases alone."""
    seed = next(
        seed for seed in range(99) if draws(seed, 3, 0)[0] < 0.1 < min(draws(seed, 3, at)[0] for at in (2, 4, 6))
    )
    generator = Generator(PolicyConfig(), SamplingConfig(max_tokens=3), samples=2, seed=seed)
    return Audits(AuditConfig(share=0.1, bound=0.1), generator, AUDITS.referee, AUDITS.version, AUDITS.newest)


def test_an_auditor_that_is_alone_with_its_opinion_is_out_itself_and_what_it_judged_stays() -> None:
    cluster = Cluster(A, B, b=off(1))
    collection = audited(cluster)
    assert again(collection, cluster) == []
    assert cluster.exclusions.distrusted.keys() == {B.address}
    assert not cluster.exclusions.is_watched(A)
    assert again(audited(Cluster(A, B)), cluster) == []  # and what A makes later, too


@pytest.mark.parametrize(
    ("third", "trainer", "why"),
    [
        (off(3), TRAINER, "they are 2.05 and 1.14 from the trainer's worker, so that neither is known to be wrong"),
        (raising(OSError("no room")), TRAINER, "the trainer's worker cannot decide: no room"),
        (lambda _: "nonsense", TRAINER, "the trainer's worker cannot decide: scores are str, not float32 [2, 2, 3]"),
        (off(0), A, "one of them trains, so that no third can decide"),
    ],
)
def test_where_no_two_of_three_agree_nobody_is_wrong_and_it_is_said_once(
    third: Answer, trainer: Offer, why: str
) -> None:
    cluster = Cluster(A, B, b=off(1), third=third, trainer=trainer)
    collection = audited(cluster, audits=fresh(), times=2)
    assert figures(collection)["audit/disagreed"] == 8
    assert again(collection, cluster) == []
    assert cluster.exclusions.distrusted == {}
    said = "a and b disagree about a lease of step 4: 0.368 nats per token, 0.1 are allowed"
    assert {line.partition("; ")[0] for line in cluster.said} == {said}
    assert {line.partition("; ")[2] for line in cluster.said} <= {why, why.replace("[2, 2, 3]", "[2, 2, 2]")}
    assert len(cluster.said) == len(set(cluster.said))


def fresh() -> Audits:
    return Audits(AUDITS.config, AUDITS.generator, AUDITS.referee, AUDITS.version, AUDITS.newest)


def test_an_audit_that_no_worker_can_make_costs_nothing() -> None:
    later: Answer = lambda _: None  # noqa: E731 - it has a later version by now
    for cluster in (Cluster(A), Cluster(A, B, b=later), Cluster(A, B, C, b=later, c=raising(OSError("no disk")))):
        collection = audited(cluster, audits=fresh())
        assert figures(collection) == {"audit/leases": 0, "audit/missed": 4, "audit/disagreed": 0}
        assert again(collection, cluster) == []
        assert cluster.said in ([], ["c cannot audit: no disk"])

    def gone(step: int) -> PolicyVersion:
        raise NotThere(f"v{step}")

    removed = Audits(AUDITS.config, AUDITS.generator, AUDITS.referee, gone, AUDITS.newest)
    assert figures(audited(Cluster(A, B), audits=removed))["audit/missed"] == 4


def test_where_one_cannot_the_next_is_asked_and_nonsense_counts_against_who_returns_it() -> None:
    cluster = Cluster(A, B, C, b=lambda _: "nonsense")
    collection = audited(cluster)
    assert figures(collection)["audit/leases"] == 4
    assert set(cluster.asked) == {"b", "c"}
    refused = "b returned for audit what was not asked for: it is str, and not scores with their type; it is done again"
    assert refused in cluster.said


def test_who_audits_follows_from_the_name_of_the_lease_and_whom_nothing_is_known_against_comes_first() -> None:
    asked = []
    for _ in range(2):
        cluster = Cluster(C, B, A)
        audited(cluster)
        asked.append(sorted(cluster.asked))
    assert asked[0] == asked[1]
    assert set(asked[0]) == {"b", "c"}
    cluster = Cluster(A, B, C)
    cluster.exclusions.found_wrong(B, "before", A)
    audited(cluster)
    assert set(cluster.asked) == {"c"}


def test_a_cluster_that_is_lost_ends_the_batch() -> None:
    cluster = Cluster(A, B, b=raising(SchedulerLostError("gone")))
    collection = Collection(3, problem_set(), config(prompts=2, lease=2), [AUDIT])
    (lease,) = next(draws := collection.draws())
    collection.arrive(lease, *whole(rollouts(lease, 2), A))
    ended: list[BaseException] = []

    def run() -> None:
        try:
            audit.fn(cast("Any", cluster), collection, AUDITS)
        except SchedulerLostError as error:
            ended.append(error)

    auditing = Thread(target=run)
    auditing.start()
    assert list(draws) == []  # nothing is waited for any more
    auditing.join(30)
    assert [str(error) for error in ended] == ["gone"]


def test_a_generator_that_is_alone_has_nobody_to_audit_it() -> None:
    assert not AUDITS.possible(cast("Any", Cluster(A)))
    cluster = Cluster(A, B)
    assert AUDITS.possible(cast("Any", cluster))
    for _ in range(2):
        cluster.exclusions.found_wrong(B, "far off", A)
    assert not AUDITS.possible(cast("Any", cluster))
    cluster.silent.add(A.address)
    assert not AUDITS.possible(cast("Any", cluster))


def test_the_maker_s_type_is_known_by_what_it_says() -> None:
    collection = Collection(3, problem_set(), config(prompts=2, lease=2), [AUDIT])
    (lease,) = next(draws := collection.draws())
    said = rollouts(lease, 2)
    collection.arrive(lease, *whole(replace(said, makers=(Maker(dtype="float32"),) * 2), A))
    collection.abandon()
    audit.fn(cast("Any", Cluster(A, B)), collection, AUDITS)
    draws.close()
    assert "audit/dtypes/float32/bfloat16" in figures(collection)
