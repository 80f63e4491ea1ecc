"""When an item is late, by what its worker took before and by its signs of life."""

import pytest

from infra.dispatch.durations import UNMEASURED_SECONDS, Durations
from infra.dispatch.lease_config import PATIENCE
from infra.dispatch.schedule import Schedule
from tests.infra.dispatch.test_schedule import items, names


def test_late_is_what_takes_a_multiple_of_a_worker_s_own_longest() -> None:
    schedule = Schedule(2)
    assert schedule.lateness.limit("a") == PATIENCE * UNMEASURED_SECONDS
    schedule.add(items(0, (0,), 5))
    now = 0.0
    for seconds in (1, 4, 2):
        (lease,) = schedule.hand_out(["a"], now)
        now += seconds
        schedule.finished(lease, now)
        schedule.done(lease)
    assert (
        schedule.lateness.limit("a") == schedule.lateness.limit("b") == 4 * PATIENCE
    )  # b: nothing is known of its own
    (slow,) = schedule.hand_out(["b"], now)
    (_,) = schedule.hand_out(["a"], now)
    now += 4 * PATIENCE + 1
    schedule.finished(slow, now)
    assert schedule.lateness.limit("b") == PATIENCE * (4 * PATIENCE + 1)  # a slow machine is no stopped one
    assert Schedule(100).lateness.limit("a") == 100


def test_what_the_first_one_took_counts_until_there_is_another() -> None:
    """It has imported, loaded and compiled."""
    schedule = Schedule(2)
    schedule.add(items(0, (0,), 3))
    now = 0.0
    for seconds, longest in ((60, 60), (2, 2), (3, 3)):
        (lease,) = schedule.hand_out(["a"], now)
        now += seconds
        schedule.finished(lease, now)
        schedule.done(lease)
        assert schedule.lateness.limit("a") == longest * PATIENCE
    schedule.keep([])
    assert schedule.lateness.limit("a") == PATIENCE * UNMEASURED_SECONDS


def measured(patience: float = PATIENCE) -> Schedule:
    """One in which a and b have done a lease of a second each."""
    schedule = Schedule(10)
    schedule.lateness.patience = patience
    schedule.add(items(0, (0,), 2))
    for lease in schedule.hand_out(["a", "b"], -1):
        schedule.finished(lease, 0)
        schedule.done(lease)
    return schedule


@pytest.mark.parametrize(("patience", "answers", "quiet"), [(3, 10, 3), (1.5, 10, 2), (5, 10, 5), (12, 12, 12)])
def test_a_lease_is_late_after_a_multiple_of_its_time_but_for_a_least(
    patience: float, answers: float, quiet: float
) -> None:
    schedule = measured(patience)
    assert schedule.lateness.limit("a") == answers
    assert schedule.lateness.limit("a", quiet=True) == quiet


def test_what_a_worker_without_a_sign_of_life_has_goes_to_another_and_it_is_one_like_the_others_when_it_answers() -> (
    None
):
    schedule = measured()
    schedule.add(items(1, (1,), 1))
    (stopped,) = schedule.hand_out(["a"], 0)
    assert schedule.hand_out(["a", "b"], PATIENCE, quiet={"a"}) == []
    assert schedule.hand_out(["a", "b"], PATIENCE + 0.1) == []  # it answers
    (copy,) = schedule.hand_out(["a", "b"], PATIENCE + 0.1, quiet={"a"})
    assert (copy.worker, copy.item) == ("b", stopped.item)
    schedule.finished(copy, 4)
    assert schedule.done(copy) == (True, [])
    schedule.finished(stopped, 500)
    assert schedule.done(stopped) == (False, [])  # what it brings counts no more
    schedule.add(items(2, (2,), 1))
    assert names(schedule.hand_out(["a"], 500)) == [("a", (2,), 0)]
    assert schedule.lateness.limit("a") == 10  # nor is it expected to take as long again


def test_a_worker_without_a_sign_of_life_gets_nothing_unless_it_is_alone() -> None:
    schedule = measured()
    schedule.add(items(1, (1,), 3))
    assert [lease.worker for lease in schedule.hand_out(["a", "b"], 0, quiet={"a"})] == ["b"]
    assert [lease.worker for lease in schedule.hand_out(["a", "b"], 1)] == ["a"]
    assert [lease.worker for lease in schedule.hand_out(["c"], 2, quiet={"c"})] == ["c"]


def test_a_run_s_patience_is_that_of_whatever_is_late() -> None:
    """`lease.patience`: of leases, of a trainer that another takes over from, of an audit."""
    took = Durations()
    took.add("train", 40.0)
    assert took.limit("train", 10.0) == 3 * 40.0
    took.patience = 1.5
    assert took.limit("train", 10.0) == 60.0
    assert took.limit("train", 90.0) == 90.0
