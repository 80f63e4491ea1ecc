"""The first item of a worker, of which nothing is known, and which may load for long."""

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
        schedule.measured(assigned, Made(10, 40), seconds, over=True)
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


def test_it_is_taken_once_from_each_worker_and_by_none_of_which_little_is_known() -> None:
    def due(schedule: Schedule, *workers: str) -> list[Assignment]:
        return schedule.hand_out(workers, 100)

    schedule = Schedule(600)
    schedule.add([item(0)])
    schedule.hand_out(["new"], 10)
    assert due(schedule, "new", "a") == []
    schedule = Schedule(600)
    known(schedule, "a")
    schedule.add([item(0)])
    (fresh,) = schedule.hand_out(["new"], 10)
    assert due(schedule, "new", "b") == []
    (copy,) = due(schedule, "new", "b", "a")
    schedule.finished(copy, 101)
    schedule.give_back(copy)
    assert due(schedule, "new", "a") == []  # the new one has it still
    schedule.give_back(fresh)
    schedule.add([item(1)])
    schedule.hand_out(["new"], 100)
    assert [each.item.index for each in due(schedule, "a")] == [1]
    assert due(schedule, "new", "a", "b") == []


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
