"""Which item goes to which worker: whatever the order in which batches come and workers answer."""

import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.dispatch.durations import UNMEASURED_SECONDS
from infra.dispatch.items import Item
from infra.dispatch.lease_config import PATIENCE
from infra.dispatch.schedule import Schedule

WORKERS = ["a", "b", "c"]


def items(batch: int, order: tuple[int, ...], count: int) -> list[Item]:
    return [Item(order, batch, index) for index in range(count)]


def names(leases: list) -> list[tuple[str, tuple[int, ...], int]]:  # type: ignore[type-arg]
    return [(lease.worker, lease.item.order, lease.item.index) for lease in leases]


def test_an_earlier_step_and_of_it_the_earlier_groups_go_first_whenever_they_came() -> None:
    schedule = Schedule(10)
    schedule.add(items(0, (3, 0), 2))
    (first,) = schedule.hand_out(["a"], 0)
    assert first.item.order == (3, 0)  # nothing else was there
    schedule.add(items(1, (2, 0), 1))
    schedule.add(items(2, (2, 1), 1))
    schedule.add(items(3, (1, 4), 1))
    order = []
    for now in range(1, 5):
        schedule.finished(first, now)
        schedule.done(first)
        (first,) = schedule.hand_out(["a"], now)
        order.append(first.item.order)
    assert order == [(1, 4), (2, 0), (2, 1), (3, 0)]


def test_a_lost_item_is_the_next_of_its_place() -> None:
    schedule = Schedule(10)
    schedule.add(items(0, (1,), 3))
    lost, _ = schedule.hand_out(["a", "b"], 0)
    schedule.give_back(lost)
    assert names(schedule.hand_out(["c"], 1)) == [("c", (1,), 0)]


def test_a_late_item_goes_to_whoever_has_nothing_and_the_first_result_counts() -> None:
    schedule = Schedule(10)
    schedule.add(items(0, (5,), 2))
    stopped, fine = schedule.hand_out(["a", "b"], 0)
    schedule.finished(fine, 2)
    schedule.done(fine)
    assert schedule.hand_out(["b"], 9.9) == []
    schedule.add(items(1, (4,), 1))
    schedule.add(items(2, (6,), 1))
    (earlier,) = schedule.hand_out(["b"], 20)  # an earlier step goes before a late one
    assert earlier.item.order == (4,)
    schedule.finished(earlier, 20)
    schedule.done(earlier)
    assert not stopped.late
    (copy,) = schedule.hand_out(["c"], 20)  # which goes before a later step
    assert copy.item == stopped.item
    assert stopped.late
    schedule.finished(copy, 21)
    assert schedule.done(copy) == (True, [])
    assert not schedule.wants(stopped)
    (later,) = schedule.hand_out(["c", "a"], 22)
    assert names([later]) == [("c", (6,), 0)]  # a holds what it had until it answers
    schedule.finished(later, 23)
    schedule.done(later)
    schedule.finished(stopped, 90)
    assert schedule.done(stopped) == (False, [])
    schedule.add(items(3, (7,), 1))
    assert names(schedule.hand_out(["a"], 91)) == [("a", (7,), 0)]


def test_a_copy_that_is_not_needed_any_more_is_let_go() -> None:
    schedule = Schedule(10)
    schedule.add(items(0, (0,), 1))
    (slow,) = schedule.hand_out(["a"], 0)
    late = PATIENCE * UNMEASURED_SECONDS
    (copy,) = schedule.hand_out(["b"], late + 1)
    assert schedule.hand_out(["c"], late + 2) == []  # the copy is not late
    schedule.finished(slow, late + 3)
    assert schedule.done(slow) == (True, [copy])
    assert schedule.assignments == []


def test_a_result_that_does_not_come_is_made_by_another_worker() -> None:
    schedule = Schedule(10)
    schedule.add(items(0, (0,), 1))
    (lease,) = schedule.hand_out(["a"], 0)
    schedule.finished(lease, 1)
    assert schedule.hand_out(["a", "b"], 5) == []
    assert names(schedule.hand_out(["a", "b"], 12)) == [("b", (0,), 0)]  # not its own worker


@pytest.mark.parametrize("late", [False, True])
def test_what_was_given_up_is_let_go_but_by_a_late_worker(late: bool) -> None:
    schedule = Schedule(10)
    schedule.add(items(0, (0,), 1))
    leases = schedule.hand_out(["a"], 0)
    if late:
        leases += schedule.hand_out(["b"], 100)
    gone = schedule.withdraw(0)
    assert gone == leases[-1:]
    assert schedule.assignments == ([leases[0]] if late else [])
    schedule.add(items(1, (1,), 2))
    assert [lease.worker for lease in schedule.hand_out(["a", "b"], 101)] == (["b"] if late else ["a", "b"])


STEPS = st.tuples(st.sampled_from("add answer lose refuse hold wait drop".split()), st.integers(0, 7))


@settings(deadline=None)
@given(st.lists(STEPS, max_size=60), st.integers(1, 3))
def test_whatever_happens_each_item_counts_once_and_the_first_in_the_queue_goes_first(
    happenings: list[tuple[str, int]], workers: int
) -> None:
    schedule, now, batches = Schedule(1.0), 0.0, 0
    dropped: set[int] = set()
    counted: Counter[Item] = Counter()
    added: list[Item] = []

    def come_back(at: int) -> None:
        lease = schedule.assignments[at % len(schedule.assignments)]
        schedule.finished(lease, now)
        first, others = schedule.done(lease)
        counted[lease.item] += first
        assert all(other.item == lease.item for other in others)

    for what, number in [*happenings, *[("answer", 0)] * 100]:
        then, now = now, now + 0.1
        if what == "add":
            added += items(batches, (number, number % 2), 1 + number % 3)
            schedule.add(items(batches, (number, number % 2), 1 + number % 3))
            batches += 1
        elif what == "wait":
            now += 100 * number
        elif what == "hold":
            schedule.take_back()
        elif what == "drop" and batches:
            dropped.add(number % batches)
            schedule.withdraw(number % batches)
        elif schedule.assignments and what == "answer":
            come_back(number)
        elif schedule.assignments:
            schedule.give_back(schedule.assignments[number % len(schedule.assignments)])
        assert schedule.changed or schedule.hand_out(WORKERS[:workers], then) == []
        before = {lease.item for lease in schedule.assignments}
        made = schedule.hand_out(WORKERS[:workers], now)
        left = {item for item in added if item.batch not in dropped and not counted[item]}
        waiting = left - before - {lease.item for lease in made}
        fresh = [lease.item for lease in made if lease.item not in before]
        assert all(item <= other for item in fresh for other in waiting)
        assert fresh == sorted(fresh)
        held = [lease.worker for lease in schedule.assignments if lease.finished is None]
        assert len(held) == len(set(held))
        assert not waiting or len(held) == workers
    assert schedule.assignments == []
    assert {item for item in added if item.batch not in dropped} <= set(counted.elements())
    assert all(times <= 1 for times in counted.values())


def test_what_failed_on_a_worker_is_for_another_one_while_that_is_there() -> None:
    schedule = Schedule(10)
    schedule.add(items(0, (1,), 3))
    failed, _ = schedule.hand_out(["a", "b"], 0)
    schedule.failed[failed.item].add("a")
    schedule.give_back(failed)
    assert names(schedule.hand_out(["a", "b"], 1)) == [("a", (1,), 2)]  # b is at work, and gets it next
    (last,) = [lease for lease in schedule.assignments if lease.worker == "a"]
    schedule.failed[last.item].add("a")
    schedule.give_back(last)
    assert schedule.hand_out(["a", "b"], 2) == []
    assert names(schedule.hand_out(["a", "b"], 3, silent={"b"})) == [("a", (1,), 0)]  # nobody else answers
    assert names(schedule.hand_out(["c"], 4)) == [("c", (1,), 2)]  # it was waiting, and nothing else
    assert schedule.hand_out(["d"], 5) == []


def test_a_late_item_does_not_go_back_to_whom_it_failed_on_before_others_have_tried() -> None:
    schedule = Schedule(1)
    schedule.add(items(0, (1,), 1))
    (failed,) = schedule.hand_out(["a"], 0)
    schedule.failed[failed.item].add("a")
    schedule.give_back(failed)
    assert names(schedule.hand_out(["b"], 0)) == [("b", (1,), 0)]
    late = PATIENCE * UNMEASURED_SECONDS + 1
    assert names(schedule.hand_out(["a", "b", "c"], late)) == [("c", (1,), 0)]
    assert names(schedule.hand_out(["a", "b", "c"], 3 * late)) == [("a", (1,), 0)]


@given(st.integers(1, 9), st.integers(2, 3), st.lists(st.tuples(st.integers(0, 8), st.booleans()), max_size=60))
def test_a_worker_on_which_everything_fails_tries_each_item_once_and_others_do_them_all(
    count: int, workers: int, happenings: list[tuple[int, bool]]
) -> None:
    schedule, now = Schedule(1.0), 0.0
    schedule.add(items(0, (0,), count))
    tried: Counter[Item] = Counter()
    done: set[Item] = set()
    for at, wait in [*happenings, *[(row, False) for row in range(40)]]:
        now += 1000 * wait
        schedule.hand_out(WORKERS[:workers], now)
        if not schedule.assignments:
            break
        lease = schedule.assignments[at % len(schedule.assignments)]
        if lease.worker == "a" and schedule.wants(lease):
            tried[lease.item] += 1
            schedule.failed[lease.item].add("a")
            schedule.give_back(lease)
        else:
            done |= {lease.item} if schedule.done(lease)[0] else set()
    assert len(done) == count
    late = any(wait for _, wait in happenings)  # what all the others are late with may come back to it
    assert late or all(times == 1 for times in tried.values())
    assert schedule.unsettled(0) == []


def test_what_comes_back_unfinished_goes_on_before_later_work_with_whoever_is_idle_longest() -> None:
    schedule = Schedule(10)
    schedule.add(items(0, (1,), 1))
    schedule.add(items(1, (2,), 3))
    slow, fast = schedule.hand_out(["a", "b"], 0)
    schedule.finished(slow, 5)
    (later,) = schedule.hand_out(["a"], 5)  # before its result is here
    assert later.item.order == (2,)
    assert schedule.done(slow) == (True, [])
    schedule.add([slow.item.next()])
    schedule.finished(fast, 6)
    schedule.done(fast)
    (going_on,) = schedule.hand_out(["a", "b"], 6)
    assert (going_on.worker, going_on.item) == ("b", slow.item.next())
    assert not schedule.wants(slow)  # what a late copy of the first slice brings is dropped
    for assigned, now in ((going_on, 7), (later, 8)):
        schedule.finished(assigned, now)
        schedule.done(assigned)
    (last,) = schedule.hand_out(["a", "b"], 9)
    assert last.worker == "b"
    assert names(schedule.hand_out(["a", "b", "new"], 9)) == []


@given(st.permutations(["a", "b", "c"]), st.permutations(WORKERS))
def test_of_idle_workers_the_one_that_was_free_first_is_first(freed: list[str], asked: list[str]) -> None:
    schedule = Schedule(10)
    schedule.add(items(0, (1,), 6))
    first = {assigned.worker: assigned for assigned in schedule.hand_out(WORKERS, 0)}
    for after, worker in enumerate(freed):
        schedule.finished(first[worker], 10 + after / 10)  # so that none would be much sooner than another
        schedule.done(first[worker])
    assert [assigned.worker for assigned in schedule.hand_out(asked, 19)] == freed


@pytest.mark.slow
def test_a_thousand_workers_are_not_looked_at_for_each_lease() -> None:
    schedule, workers, now = Schedule(10), [f"w{at}" for at in range(1000)], 0.0
    began = time.process_time()
    schedule.add(items(0, (0,), 3000))
    out = schedule.hand_out(workers, now)
    for at in range(3000):
        now += 0.01
        schedule.finished(out[at], now)
        assert schedule.done(out[at])[0]
        out += schedule.hand_out(workers, now)
    assert len(out) == 3000
    assert time.process_time() - began < 10  # 1 s; for each lease of all workers against all others it is minutes


def test_nothing_is_kept_of_workers_that_are_gone_or_of_batches_that_are_done() -> None:
    schedule = Schedule(10)
    for batch in range(3):
        schedule.add(items(batch, (batch,), 2))
        for lease in schedule.hand_out([f"a{batch}", f"b{batch}"], batch):
            schedule.deaths.add(lease.item, lease.worker)
            if lease.item.index:
                schedule.finished(lease, batch + 100)
                schedule.done(lease)
        schedule.keep({f"a{batch}", f"b{batch}"})
        assert schedule.lateness.limit(f"b{batch - 1}") == schedule.lateness.limit(f"a{batch}")  # by what all took
        schedule.withdraw(batch)
    assert [schedule.deaths.of(item) for batch in range(3) for item in items(batch, (batch,), 2)] == [Counter()] * 6
    assert schedule.lateness.limit("b2") == 100 * PATIENCE
    schedule.keep(())
    assert schedule.lateness.limit("b2") == UNMEASURED_SECONDS * PATIENCE
