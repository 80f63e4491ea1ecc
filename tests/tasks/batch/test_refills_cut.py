"""Leases that are joined and cut to what suits each worker, across the end of an oversampling round."""

from collections.abc import Iterable
from queue import Empty, SimpleQueue
from threading import Thread

import numpy as np

from tasks.batch.collection import Collection
from tasks.batch.lease import Lease, neighbours_joined
from tasks.batch.refills import Refills
from tests.tasks.batches import config, problem_set, rollouts, verdicts, whole
from tests.tasks.test_audit import A, B

WITH_SIGNAL = [i in (1, 2, 3, 4, 5, 9, 11) for i in range(1000)]


def test_leases_that_are_generated_at_once_are_of_one_round() -> None:
    """Neighbours are joined and cut anew: one that reaches past the end of a round counts as if it were in it."""
    rounds = Refills(prompts=7, bound=21, lease=2)
    rounds.draw(broken=True)
    rounds.judged(0, np.array(WITH_SIGNAL[:5]))
    assert rounds.draw(broken=False) == [range(7, 9)]
    rounds.judged(7, np.array(WITH_SIGNAL[7:9]))
    rounds.judged(5, np.array(WITH_SIGNAL[5:7]))
    generated = rounds.draw(broken=False)
    (lease,) = neighbours_joined([Lease(groups, ()) for groups in generated])
    end = 10  # of the first round
    assert not lease.groups.start < end < lease.groups.stop


def test_no_group_is_made_twice_where_a_lease_was_cut_elsewhere_before_its_round_was_drawn_anew() -> None:
    collection = Collection(5, problem_set(), config(prompts=7, lease=2, oversample=3.0))
    drawn: SimpleQueue[list[Lease] | None] = SimpleQueue()

    def draws() -> None:
        for leases in collection.draws():
            drawn.put(leases)
        drawn.put(None)

    def judge(lease: Lease) -> None:
        made = rollouts(lease, 2)
        collection.arrive(lease, *whole(made, B if lease.groups.start == 7 and not again else A))
        collection.judged(lease, made, verdicts(lease, WITH_SIGNAL, 2))

    def all_of(leases: Iterable[Lease]) -> list[int]:
        return sorted(i for lease in leases for i in lease.groups)

    again = False
    Thread(target=draws, daemon=True).start()
    (lease,) = neighbours_joined(drawn.get(timeout=10) or [])
    first, rest = lease.cut(5)
    judge(first)
    (lease,) = drawn.get(timeout=10) or []
    judge(lease)
    judge(rest)
    while (leases := drawn.get(timeout=10)) is not None:
        for lease in neighbours_joined(leases):
            for each in lease.cut(2) if len(lease.groups) > 2 else [lease]:
                judge(each)
    assert collection.reopen(lambda maker: maker == B)  # groups 7 and 8
    again = True
    Thread(target=draws, daemon=True).start()
    try:
        while (leases := drawn.get(timeout=5)) is not None:
            for each in leases:
                judge(each)
        ended = True
    except Empty:
        ended = False
    collection.abandon()
    made = all_of(each.lease for each in collection._made.values())
    assert made == sorted(set(made)), "a group is trained on twice"
    assert ended, "the batch waits for ever"
