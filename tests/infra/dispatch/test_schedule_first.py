"""The first item of a worker, of which nothing is known, and which may load for long."""

from dataclasses import replace

import pytest

from infra.dispatch.items import Assignment, Item
from infra.dispatch.schedule import Schedule
from infra.dispatch.speeds import Made


def item(index: int, batch: int = 0) -> Item:
    return Item((batch,), batch, index)


def known(schedule: Schedule, worker: str, seconds: float = 4.0) -> None:
    """This worker has done two items, of so many seconds."""
    for index in range(2):
        schedule.add([item(index, batch=-1)])
        (assigned,) = schedule.hand_out([worker], 0)
        schedule.finished(assigned, seconds)
        schedule.measured(assigned, Made(10, 40), seconds, first=True, over=True)
        schedule.done(assigned)


def test_who_has_nothing_to_do_takes_it_too_after_its_own_time_and_the_first_result_counts() -> None:
    schedule = Schedule(60)
    known(schedule, "a")
    schedule.add([item(0), item(1)])
    fresh, first = schedule.hand_out(["a", "new"], 10)
    schedule.finished(first, 14)
    schedule.done(first)
    assert schedule.hand_out(["a", "new"], 13.9) == []  # it had less than `a` takes
    (copy,) = schedule.hand_out(["a", "new"], 14.1)
    assert (copy.worker, copy.item) == ("a", fresh.item)
    assert schedule.late(copy) == []  # for no fault of its: nothing is said
    assert schedule.done(copy) == (True, [])
    schedule.add([item(0, batch=1)])
    (other,) = schedule.hand_out(["a", "new"], 20)
    assert other.worker == "a"  # the new one has not answered yet
    assert not schedule.wants(fresh)
    schedule.finished(fresh, 30)
    assert schedule.done(fresh) == (False, [])
    schedule.add([item(1, batch=1)])
    assert [each.worker for each in schedule.hand_out(["a", "new"], 31)] == ["new"]


def came_back(schedule: Schedule, first: Assignment, second: Assignment, now: float) -> None:
    for back in (first, second):
        schedule.finished(back, now)
        schedule.done(back)
        schedule.measured(back, Made(0.0, 1.0), now - back.since, first=back is first, over=back is first)


def test_it_is_shared_until_its_speed_is_known_and_again_where_that_one_did_not_do_it() -> None:
    schedule = Schedule(600)
    schedule.add([item(0)])
    (fresh,) = schedule.hand_out(["new"], 10)
    assert schedule.hand_out(["new", "a"], 100) == []  # nothing is known of anybody
    schedule = Schedule(600)
    known(schedule, "a")
    schedule.add([item(0)])
    (fresh,) = schedule.hand_out(["new"], 10)
    assert schedule.hand_out(["new", "b"], 100) == []
    (copy,) = schedule.hand_out(["new", "b", "a"], 100)
    schedule.give_back(copy)
    assert not fresh.late
    schedule.failed[fresh.item].add("a")
    assert schedule.hand_out(["new", "a"], 101) == []
    schedule.failed.clear()
    (copy,) = schedule.hand_out(["new", "a"], 101)
    came_back(schedule, copy, fresh, now=105)
    schedule.add([item(1)])
    (fresh,) = schedule.hand_out(["new"], 105)
    assert not fresh.late
    (copy,) = schedule.hand_out(["new", "a", "b"], 200)
    assert (copy.worker, copy.item) == ("a", fresh.item)
    came_back(schedule, copy, fresh, now=205)
    schedule.add([item(2)])
    assert [each.worker for each in schedule.hand_out(["new"], 205)] == ["new"]
    assert schedule.hand_out(["new", "a", "b"], 300) == []  # that came second twice: its speed is known


def test_once_its_batch_is_over_it_goes_on_and_tells_the_speed() -> None:
    schedule = Schedule(600)
    known(schedule, "a")
    schedule.add([item(0)])
    (fresh,) = schedule.hand_out(["new"], 10)
    (copy,) = schedule.hand_out(["new", "a"], 15)
    schedule.finished(copy, 19)
    assert schedule.done(copy) == (True, [])
    assert schedule.withdraw(0) == []
    assert schedule.assignments == [fresh]
    schedule.finished(fresh, 40)
    assert schedule.done(fresh) == (False, [])
    schedule.measured(fresh, Made(10, 40), 30, first=False, over=False)
    cost = schedule.speeds.cost("new")
    assert cost is not None
    assert cost.seconds(1) == pytest.approx(30, rel=0.02)


def test_a_hold_takes_it_back_from_both() -> None:
    schedule = Schedule(600)
    known(schedule, "a")
    schedule.add([item(0)])
    (fresh,) = schedule.hand_out(["new"], 10)
    (copy,) = schedule.hand_out(["new", "a"], 15)
    assert {id(each) for each in schedule.take_back()} == {id(fresh), id(copy)}
    assert [each.item for each in schedule.hand_out(["a"], 16)] == [fresh.item]


def test_what_waits_is_done_before_and_a_known_worker_is_waited_for() -> None:
    schedule = Schedule(600)
    known(schedule, "a")
    known(schedule, "slow", 12.0)
    schedule.add([item(0), item(1), item(2)])
    schedule.hand_out(["new"], 10)
    (held,) = schedule.hand_out(["a"], 20)
    assert held.item.index == 1
    schedule.finished(held, 24)
    schedule.done(held)
    schedule.hand_out(["slow"], 24)
    (copy,) = schedule.hand_out(["a"], 24)
    assert copy.item.index == 0
    schedule.finished(copy, 28)
    schedule.done(copy)
    assert schedule.hand_out(["a"], 60) == []


def test_one_that_does_not_answer_in_time_counts_as_late_once() -> None:
    schedule = Schedule(10)
    known(schedule, "a")
    schedule.add([item(0)])
    (fresh,) = schedule.hand_out(["new"], 10)
    (copy,) = schedule.hand_out(["new", "a"], 15)
    schedule.finished(copy, 19)
    schedule.done(copy)
    assert schedule.late_firsts(21) == []
    assert schedule.late_firsts(23) == [fresh]  # three times the 4 s of the others
    assert schedule.late_firsts(24) == []
    assert fresh.late
    schedule.add([replace(item(0, batch=1), without=frozenset({"a"}))])
    assert schedule.hand_out(["new", "a"], 25) == []  # it is for others
    assert [each.worker for each in schedule.hand_out(["new", "a"], 25, silent={"new"})] == ["a"]


def test_one_worker_takes_it_and_no_third_one_be_it_late_by_then() -> None:
    schedule = Schedule(10)
    known(schedule, "a")
    known(schedule, "b")
    schedule.add([item(0)])
    (fresh,) = schedule.hand_out(["new"], 10)
    (copy,) = schedule.hand_out(["new", "a", "b"], 100)  # later than `late_after` and any patience
    assert (copy.worker, copy.item) == ("a", fresh.item)
    assert schedule.hand_out(["new", "a", "b"], 101) == []


def test_a_batch_that_is_withdrawn_leaves_its_worker_free() -> None:
    schedule = Schedule(600)
    known(schedule, "a")
    schedule.add([item(0)])
    (fresh,) = schedule.hand_out(["new"], 10)
    (copy,) = schedule.hand_out(["new", "a"], 15)
    assert {id(each) for each in schedule.withdraw(0)} == {id(fresh), id(copy)}
    schedule.add([item(0, batch=1), item(1, batch=1)])
    assert {each.worker for each in schedule.hand_out(["a", "new"], 16)} == {"a", "new"}


def test_of_calls_whose_results_tell_nothing_of_speed_nothing_is_kept() -> None:
    schedule = Schedule(600)
    for batch in range(200):
        schedule.add([item(0, batch)])
        (assigned,) = schedule.hand_out([f"w{batch % 3}"], batch)
        schedule.finished(assigned, batch + 0.5)
        schedule.done(assigned)
    assert len(schedule._firsts._alone) == 3  # the last one of each worker
    schedule.keep(["w0"])
    assert len(schedule._firsts._alone) == 1


def test_who_takes_it_too_and_comes_second_is_no_slower_than_it_was() -> None:
    schedule = Schedule(600)
    known(schedule, "a")
    before = schedule.speeds.cost("a")
    schedule.add([item(0)])
    (fresh,) = schedule.hand_out(["new"], 10)
    (copy,) = schedule.hand_out(["new", "a"], 100)
    schedule.finished(fresh, 103.9)
    schedule.finished(copy, 104.0)  # before the other's result is here
    assert schedule.done(fresh) == (True, [])
    schedule.measured(fresh, Made(10, 40), 93.9, first=True, over=True)
    assert schedule.done(copy) == (False, [])
    schedule.measured(copy, Made(10, 40), 4.0, first=False, over=False)
    assert schedule.speeds.knows("a")
    assert schedule.speeds.cost("a") == before
