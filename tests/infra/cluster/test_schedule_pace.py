"""The last items of a batch, where some workers are slower than others."""

from infra.cluster.schedule import Item, Schedule
from tests.infra.cluster.test_schedule import items, names


def paced(**seconds: float) -> Schedule:
    """One whose workers have done a lease of so many seconds each."""
    schedule = Schedule(10)
    schedule.add(items(0, (0,), len(seconds)))
    for lease in schedule.hand_out(list(seconds), 0):
        schedule.finished(lease, seconds[lease.worker])
        schedule.done(lease)
    return schedule


def test_the_slowest_leaves_the_last_items_to_who_will_have_done_them_sooner() -> None:
    schedule = paced(slow=8, fast=1)
    schedule.add(items(1, (1,), 9))
    first, second = schedule.hand_out(["slow", "fast"], 10)
    assert (first.worker, second.worker) == ("slow", "fast")  # seven items wait: it has time for one
    for now in range(11, 14):
        schedule.finished(second, now)
        schedule.done(second)
        (second,) = schedule.hand_out(["slow", "fast"], now)
    schedule.finished(first, 13.5)
    schedule.done(first)
    assert schedule.hand_out(["slow", "fast"], 13.5) == []  # fast has done the four that wait in 4.5 s
    schedule.add(items(2, (2,), 40))
    (other,) = schedule.hand_out(["slow", "fast"], 13.6)  # of the next batch it has time for one
    assert names([other]) == [("slow", (2,), 0)]


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
    assert [lease.worker for lease in schedule.hand_out(["a", "b"], 2)] == ["a", "b"]
    schedule.add(items(2, (1,), 1))
    schedule.failed[Item((1,), 1, 2)].add("b")
    assert schedule.hand_out(["a", "b"], 2.5) == []


def test_an_item_that_failed_on_who_is_faster_is_not_left_to_it() -> None:
    schedule = paced(slow=8, fast=1)
    schedule.add(items(1, (1,), 1))
    schedule.failed[Item((1,), 1, 0)].add("fast")
    assert [lease.worker for lease in schedule.hand_out(["slow", "fast"], 10)] == ["slow"]
