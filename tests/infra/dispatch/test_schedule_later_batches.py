"""A slow worker beside a fast one, where the items of several batches wait: none of them alone is worth its while."""

from collections.abc import Mapping
from typing import Any

import pytest

from infra.dispatch.schedule import Schedule
from tests.infra.dispatch.test_schedule import items, names
from tests.infra.dispatch.test_schedule_pace import back, paced


def test_what_waits_before_a_later_batch_counts_though_it_is_left_to_others() -> None:
    schedule = paced(slow=8, fast=1)
    for batch in range(1, 6):
        schedule.add(items(batch, (batch,), 4))
    handed = names(schedule.hand_out(["slow", "fast"], 10))
    # twenty wait, and fast does six of them in the 6.4 s in which slow would have to be beaten
    assert [row for row in handed if row[0] == "slow"] in ([("slow", (2,), 0)], [("slow", (3,), 0)])


def made(
    schedule: Schedule, took: Mapping[str, float], leases: int, ahead: int, seconds: float = 400.0
) -> dict[str, int]:
    """Items by worker, where the trainer takes no time and ``ahead`` batches are made before their turn."""
    left: dict[int, int] = {}
    running, step, began = [], 1, 100.0
    now, done = began, {"slow": 0, "fast": 0}
    while now < began + seconds:
        while len(left) <= ahead:
            schedule.add(items(step, (step,), leases))
            left[step] = leases
            step += 1
        running += [(now + took[each.worker], each) for each in schedule.hand_out(["slow", "fast"], now)]
        now = min([end for end, _ in running] + [now + 0.25])
        for end, each in [one for one in running if one[0] <= now + 1e-9]:
            running.remove((end, each))
            if each in schedule.assignments and back(schedule, each, now):
                done[each.worker] += 1
                left[each.item.batch] -= 1
        left = {batch: count for batch, count in left.items() if count or min(left) != batch}
    return done


def share_of_slow(*args: Any, **named: Any) -> float:
    done = made(*args, **named)
    return done["slow"] / sum(done.values())


@pytest.mark.parametrize(("slow", "leases", "ahead"), [(4, 2, 4), (8, 5, 4), (8, 4, 2), (5, 3, 1), (10, 8, 1)])
def test_a_slow_worker_gets_its_share_of_batches_of_few_items(slow: int, leases: int, ahead: int) -> None:
    took = {"slow": slow, "fast": 1.0}
    assert share_of_slow(paced(**took), took, leases, ahead) > 0.85 / (slow + 1)


@pytest.mark.parametrize("ahead", [0, 1])
def test_a_worker_whose_first_items_loaded_the_model_is_used_again(ahead: int) -> None:
    """Two that are as fast as each other; one has fetched the weights over Wi-Fi in its first lease, and was slow once
    more. Between two batches of staleness 0 nothing waits."""
    schedule = Schedule(10)
    for batch, slow in enumerate((60, 40)):
        schedule.add(items(-batch, (0,), 2))
        for lease in schedule.hand_out(["slow", "fast"], 0):
            back(schedule, lease, slow if lease.worker == "slow" else 5)
    assert share_of_slow(schedule, {"slow": 5, "fast": 5}, leases=2, ahead=ahead, seconds=600) > 0.4


def test_a_slow_worker_seldom_holds_up_a_batch_that_nothing_follows() -> None:
    took = {"slow": 40.0, "fast": 1.0}
    assert sum(made(paced(**took), took, leases=2, ahead=0, seconds=4000).values()) > 0.98 * 4000
