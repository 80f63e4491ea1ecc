"""How much of what waits each worker should have."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.dispatch.shares import Pool
from infra.dispatch.shares import is_sooner as pool_is_sooner
from infra.dispatch.shares import share as pool_share
from infra.dispatch.speeds import Cost


@dataclass(frozen=True)
class Free:
    """A worker as it will be."""

    start: float  # seconds from now until it can have begun an item
    each: float  # seconds of a unit from then on


WORKERS = st.lists(st.builds(Free, st.floats(0, 50), st.floats(0.01, 20)), min_size=1, max_size=6)


def pool(others: Sequence[Free], mine: Cost | None = None) -> Pool:
    """Of these, and of one behind them that can begin now."""
    workers = list(others) if mine is None else [*others, Free(mine.fixed, mine.each)]
    return Pool(np.array([free.start for free in workers]), np.array([free.each for free in workers]))


def share(ahead: int, mine: Cost, others: Sequence[Free], seconds: float) -> int:
    return pool_share(ahead, mine, pool(others, mine), len(others), seconds)


def is_sooner(ahead: int, least: int, mine: Cost, others: Sequence[Free], seconds: float) -> bool:
    return pool_is_sooner(ahead, least, pool(others, mine), len(others), seconds)


def ends(units: float, workers: Sequence[Free]) -> float:
    """Who begins earlier does more, one after the other."""
    at, done, rate = float("inf"), 0.0, 0.0
    for worker in sorted(workers, key=lambda worker: worker.start):
        if rate and at + (units - done) / rate <= worker.start:
            break
        done += rate * (worker.start - at) if rate else 0.0
        at, rate = worker.start, rate + 1 / worker.each
    return at + (units - done) / rate if rate else at


@given(st.integers(1, 200), WORKERS, st.builds(Cost, st.floats(0, 30), st.floats(0.01, 10)), st.floats(0, 60))
def test_a_pool_ends_as_its_workers_do_one_after_the_other(
    units: int, others: list[Free], mine: Cost, start: float
) -> None:
    found = pool(others, mine)
    assert found.ends(units) == pytest.approx(ends(units, [*others, Free(mine.fixed, mine.each)]))
    assert found.ends(units, without=len(others)) == pytest.approx(ends(units, others))
    soonest = min(other.start + units * other.each for other in others)
    assert found.soonest(units, without=len(others)) == pytest.approx(soonest)
    found.moved(len(others), start)
    assert found.ends(units) == pytest.approx(ends(units, [*others, Free(start, mine.each)]))
    assert found.ends(units, without=len(others)) == pytest.approx(ends(units, others))
    found.moved(0, float("inf"))  # it does nothing
    assert found.ends(units) == pytest.approx(ends(units, [*others[1:], Free(start, mine.each)]))
    assert found.ends(units, without=0) == pytest.approx(ends(units, [*others[1:], Free(start, mine.each)]))


@given(st.integers(1, 200), WORKERS)
def test_all_that_begin_before_the_end_have_done_all_of_it_by_then(units: int, workers: list[Free]) -> None:
    end = pool(workers).ends(units)
    assert sum(max(0.0, end - worker.start) / worker.each for worker in workers) == pytest.approx(units)
    assert pool([*workers, Free(0.0, 5.0)]).ends(units) <= end + 1e-9


def test_nobody_ends() -> None:
    assert pool([]).ends(3) == float("inf")
    assert pool([], Cost(1.0, 1.0)).ends(3, without=0) == float("inf")
    assert not is_sooner(1, 1, Cost(1.0, 1.0), [], 1e9)


def test_shares_are_those_of_speed_and_a_batch_ends_at_once() -> None:
    fast, slow = Cost(0.0, 1.0), Cost(0.0, 3.0)
    assert share(32, fast, [Free(0.0, 3.0)], 1e9) == 24
    assert share(8, slow, [Free(24.0, 1.0)], 1e9) == 8  # what is left, when fast is busy with the rest
    assert share(32, slow, [Free(0.0, 1.0)], 1e9) == 8
    assert share(9, slow, [Free(3.0, 1.0)], 1e9) == 3
    assert share(1, slow, [Free(0.0, 1.0)], 1e9) == 1  # at least, see is_sooner
    assert share(24, fast, [Free(23.9, 3.0)], 1e9) == 24  # not 23, and one for which another would be asked
    assert share(32, slow, [Free(0.0, 1.0)], 12.0) == 4
    assert share(32, slow, [Free(0.0, 1.0)], 1.0) == 1


def test_an_item_is_large_enough_to_be_worth_its_fixed_seconds_unless_others_would_wait_for_it() -> None:
    mine = Cost(5.0, 1.0)
    assert share(40, mine, [Free(5.0, 1.0)] * 9, 1e9) == 4  # they end at 9, without this worker at 9.4
    assert share(40, mine, [Free(8.0, 1.0)] * 9, 1e9) == 6  # 11 s, without this worker 12.4
    assert share(40, mine, [Free(6.0, 1.0)] * 9, 1e9) == 5
    assert share(60, Cost(5.0, 1.0), [Free(5.0, 1.0)], 7.0) == 5  # 7 s would be 2 units
    assert share(3, mine, [], 1e9) == 3


@given(st.integers(1, 300), st.builds(Cost, st.floats(0, 30), st.floats(0.01, 10)), WORKERS, st.floats(0.1, 100))
def test_a_share_ends_by_when_all_do_or_by_when_others_alone_would_or_it_is_one_unit(
    ahead: int, mine: Cost, others: list[Free], seconds: float
) -> None:
    units = share(ahead, mine, others, seconds)
    assert 1 <= units <= ahead
    assert units == 1 or mine.seconds(units) <= 1.05 * ends(ahead, others) + 1e-3
    assert units == 1 or mine.seconds(units) <= 1.05 * seconds + 1e-3 or units <= mine.half + 1


@given(st.integers(1, 50), st.lists(st.builds(Cost, st.floats(0, 5), st.floats(0.1, 10)), min_size=2, max_size=6))
def test_idle_workers_never_all_leave_it_to_each_other(ahead: int, costs: list[Cost]) -> None:
    left = []
    for mine in costs:
        others = [Free(cost.fixed, cost.each) for cost in costs if cost is not mine]
        left.append(is_sooner(ahead, 1, mine, others, mine.seconds(share(ahead, mine, others, 30.0))))
    assert not all(left)
