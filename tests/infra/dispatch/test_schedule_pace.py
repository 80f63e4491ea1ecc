"""The last items of a batch, where some workers are slower than others."""

import pytest

from infra.dispatch.items import Assignment, Item
from infra.dispatch.lease_config import PATIENCE
from infra.dispatch.schedule import Schedule
from infra.dispatch.speeds import Made
from tests.infra.dispatch.test_schedule import items, names


def back(schedule: Schedule, lease: Assignment, now: float) -> bool:
    """The lease is done at `now`; whether it is the first of its item."""
    schedule.finished(lease, now)
    first, _ = schedule.done(lease)
    schedule.measured(lease, Made(0.0, 1.0), now - lease.since, first=first, over=first)
    return first


def paced(first: float = 0.0, **seconds: float) -> Schedule:
    """One whose workers have done two leases of so many seconds each, the first of which took `first` more."""
    schedule = Schedule(10)
    for batch, more in enumerate((first, 0)):
        schedule.add(items(-batch, (0,), len(seconds)))
        for lease in schedule.hand_out(list(seconds), 0):
            back(schedule, lease, seconds[lease.worker] + more)
    return schedule


def test_the_slowest_leaves_the_last_items_to_who_will_have_done_them_sooner() -> None:
    schedule = paced(slow=8, fast=1)
    schedule.add(items(1, (1,), 14))
    second, first = schedule.hand_out(["slow", "fast"], 10)
    assert (first.worker, second.worker) == ("slow", "fast")  # fourteen wait: it has time for one
    for now in range(11, 19):
        back(schedule, second, now)
        (second,) = schedule.hand_out(["slow", "fast"], now)
    back(schedule, first, 18)
    assert schedule.hand_out(["slow", "fast"], 18) == []  # fast has done the four that wait in 5 s
    schedule.add(items(2, (2,), 40))
    (other,) = schedule.hand_out(["slow", "fast"], 18.1)  # of the next batch it has time for one
    assert names([other]) == [("slow", (2,), 0)]


def test_a_worker_that_has_left_all_to_others_for_its_own_time_gets_it_anyway() -> None:
    schedule = paced(slow=8, fast=1)
    schedule.add(items(1, (1,), 2))
    assert names(schedule.hand_out(["slow"], 9)) == [("slow", (1,), 0)]  # there are no others
    schedule.withdraw(1)
    schedule.add(items(2, (2,), 4))
    (fast,) = schedule.hand_out(["slow", "fast"], 10)
    for now in (13, 16, 19):  # fast takes three times as long as it did
        assert fast.worker == "fast"
        back(schedule, fast, now)
        first = schedule.hand_out(["slow", "fast"], now)
        fast = first[-1]
    assert [each.worker for each in first] == ["slow"]  # nothing is left for fast


def test_nobody_counts_on_a_worker_that_is_overdue() -> None:
    schedule = paced(slow=8, fast=1)
    schedule.add(items(1, (1,), 2))
    assert names(schedule.hand_out(["slow", "fast"], 10)) == [("fast", (1,), 0)]
    assert schedule.hand_out(["slow", "fast"], 11.4) == []
    assert names(schedule.hand_out(["slow", "fast"], 11.6)) == [("slow", (1,), 1)]
    assert schedule.hand_out(["slow", "fast"], 11.6) == []


def test_two_that_are_as_fast_as_each_other_share_the_last_items() -> None:
    schedule = paced(a=1.0, b=0.9)
    schedule.add(items(1, (1,), 3))
    assert sorted(lease.worker for lease in schedule.hand_out(["a", "b"], 2)) == ["a", "b"]
    schedule.add(items(2, (1,), 1))
    schedule.failed[Item((1,), 1, 2)].add("b")
    assert schedule.hand_out(["a", "b"], 2.5) == []


def test_an_item_that_failed_on_who_is_faster_is_not_left_to_it() -> None:
    schedule = paced(slow=8, fast=1)
    schedule.add(items(1, (1,), 1))
    schedule.failed[Item((1,), 1, 0)].add("fast")
    assert [lease.worker for lease in schedule.hand_out(["slow", "fast"], 10)] == ["slow"]


def test_a_worker_whose_first_item_took_long_is_not_slow() -> None:
    schedule = paced(first=60, a=1, b=1)
    schedule.add(items(1, (1,), 2))
    assert [lease.worker for lease in schedule.hand_out(["a", "b"], 100)] == ["a", "b"]
    schedule.add(items(2, (2,), 1))
    (one,) = schedule.hand_out(["c"], 100)
    back(schedule, one, 160)  # it has done nothing before
    schedule.add(items(3, (3,), 1))
    assert [lease.worker for lease in schedule.hand_out(["c", "a", "b"], 160)] == ["c"]


def beaten() -> tuple[Schedule, Assignment]:
    """At 14 a has done what b has had since 2, too."""
    schedule = paced(a=1, b=1)
    schedule.add(items(1, (1,), 2))
    fast, slow = schedule.hand_out(["a", "b"], 2)
    back(schedule, fast, 3)
    (other,) = schedule.hand_out(["a", "b"], 2 + 11)
    back(schedule, other, 14)
    return schedule, slow


def test_a_worker_that_has_become_slow_is_late_once_and_then_by_its_new_time() -> None:
    schedule, slow = beaten()
    assert not schedule.changed or schedule.hand_out(["a", "b"], 14) == []
    schedule.finished(slow, 42)
    assert schedule.done(slow) == (False, [])
    schedule.measured(slow, Made(0.0, 1.0), 40.0, first=False, over=False)
    assert schedule.lateness.limit("b") == pytest.approx(40 * PATIENCE, rel=0.01)
    assert schedule.lateness.limit("a") == 10


def test_a_worker_that_raises_at_what_another_has_done_may_have_more() -> None:
    schedule, slow = beaten()
    schedule.add(items(2, (2,), 2))
    assert names(schedule.hand_out(["a", "b"], 14)) == [("a", (2,), 0)]
    assert not schedule.changed
    schedule.done(slow)
    assert schedule.changed
    assert names(schedule.hand_out(["a", "b"], 14)) == [("b", (2,), 1)]


def test_where_nobody_answers_nothing_is_handed_out_until_somebody_does() -> None:
    schedule = paced(a=1, b=1, c=1)
    schedule.add(items(1, (1,), 3))
    for lease in schedule.hand_out(["a", "b", "c"], 2):
        back(schedule, lease, 3)
    schedule.add(items(2, (2,), 1))
    schedule.keep({"a", "b"})
    assert schedule.hand_out(["a", "b"], 4, silent={"a", "b"}) == []  # late with another call
    assert names(schedule.hand_out(["a", "b"], 5, silent={"a"})) == [("b", (2,), 0)]
