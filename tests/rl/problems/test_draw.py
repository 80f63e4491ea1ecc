"""Drawing from the rows of a file: epochs, and replacements."""

import random
from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rl.problems.rows import draw
from rl.problems.tables import ProblemError
from rl.records import Problem


def numbered(count: int) -> list[Problem]:
    return [Problem(prompt=f"what is {n}?", target=str(n), source=f"sums.csv:{n}") for n in range(count)]


def targets(size: int, stream: int, position: int, own: int, count: int, skip: int = 0) -> list[int]:
    step = position // max(1, own)
    return [int(problem.target) for problem in draw(numbered(size), stream, step, position, own, count, skip)]


sizes, counts = st.integers(1, 30), st.integers(0, 70)
seeds, positions = st.integers(0, 2**64), st.integers(0, 10**6)


@settings(max_examples=200, deadline=None, database=None)
@given(sizes, seeds, positions, counts, counts, counts)
def test_a_draw_continues_where_the_one_before_it_ended(
    size: int, seed: int, position: int, own: int, first: int, more: int
) -> None:
    whole = targets(size, seed, position, own, first + more)
    assert len(whole) == first + more
    assert whole == targets(size, seed, position, own, first) + targets(size, seed, position, own, more, skip=first)


@settings(max_examples=200, deadline=None, database=None)
@given(sizes, seeds, st.integers(0, 100), st.lists(st.integers(1, 40), min_size=1, max_size=20))
def test_every_problem_comes_once_an_epoch_whatever_the_steps_take(
    size: int, seed: int, epoch: int, steps: list[int]
) -> None:
    position, seen = epoch * size, list[int]()
    for own in steps:
        seen += targets(size, seed, position, own, own)
        position += own
    for start in range(0, len(seen), size):
        part = seen[start : start + size]
        assert len(set(part)) == len(part)


@settings(max_examples=200, deadline=None, database=None)
@given(sizes, seeds, st.integers(0, 100), st.data())
def test_what_replaces_a_problem_is_another_one_of_the_step(
    size: int, seed: int, epoch: int, data: st.DataObject
) -> None:
    begin = data.draw(st.integers(0, size - 1))
    own = data.draw(st.integers(0, size - begin))  # a step within one epoch
    drawn = targets(size, seed, epoch * size + begin, own, 2 * size)
    assert len(set(drawn[:size])) == size
    assert len(set(drawn[size:])) == size


def test_all_7273_problems_are_seen_in_as_many_draws() -> None:
    problems = numbered(7273)
    steps = [draw(problems, 0, step, step * 32, 32, 32) for step in range(-(-7273 // 32))]
    assert len({problem.target for drawn in steps for problem in drawn}) == 7273


def test_a_draw_depends_on_seed_and_position_and_on_nothing_else() -> None:
    keys = [(seed, 32 * step) for seed in range(6) for step in range(6)]
    draws = {key: targets(1000, *key, 32, 32) for key in keys}
    random.seed(1)
    assert {key: targets(1000, *key, 32, 32) for key in reversed(keys)} == draws
    assert len({tuple(drawn) for drawn in draws.values()}) == 36


def test_problems_that_replace_others_are_drawn_equally_often() -> None:
    drawn = Counter(row for step in range(4000) for row in targets(20, 7, step * 5, 5, 5, skip=5))
    assert len(drawn) == 20
    assert all(850 < count < 1150 for count in drawn.values())  # 1000 each, and 5 standard deviations of 27 around it
    steps = [set(targets(1000, 0, step * 32, 32, 224, skip=32)) for step in range(20)]
    assert max(len(one & other) for one, other in pairwise(steps)) < 78  # 50 by chance


def test_a_step_that_draws_none_of_a_set_first_has_replacements_of_its_own() -> None:
    # of a set that is rare in a mix the position stands still for many steps
    steps = [tuple(problem.target for problem in draw(numbered(1000), 0, step, 7, 0, 4)) for step in range(50)]
    assert len(set(steps)) == 50


def test_the_sequence_of_a_seed_stays_what_it_was() -> None:
    # a resumed run, perhaps after an upgrade of numpy, has to meet the problems it would have met
    assert targets(10, 1, 8, 4, 12) == [8, 4, 1, 3, 9, 5, 7, 0, 6, 2, 1, 4]


def test_there_is_nothing_to_draw_from_no_problems() -> None:
    with pytest.raises(ProblemError, match="no problems"):
        draw([], 0, 0, 0, 1, 1)
