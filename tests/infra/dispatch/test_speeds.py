"""What an item costs a worker, from what its last ones took."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra.dispatch.speeds import OVERHEAD, PART, RECENT, Made, Speeds, fit, relative_fit

STEP, TOKEN, STEPS, TOKENS = 0.02, 0.001, 40, 160  # seconds; of an item and of a unit


def taken(units: int, step: float = STEP, token: float = TOKEN) -> tuple[Made, float]:
    return Made(STEPS, TOKENS * units), step * STEPS + token * TOKENS * units


def known(*units: int) -> Speeds:
    """Of a worker that has done items of so many units, after a first one that took a minute more."""
    speeds = Speeds()
    made, seconds = taken(8)
    speeds.add("a", made, seconds + 60)
    for each in units:
        speeds.add("a", *taken(each))
        speeds.over("a", each, Made(STEPS, TOKENS * each))
    return speeds


def test_what_steps_take_is_told_from_what_tokens_take_where_sizes_differ() -> None:
    cost = known(16, 4, 8, 16).cost("a")
    assert cost is not None
    assert cost.fixed == pytest.approx(OVERHEAD + STEP * STEPS, rel=0.05)
    assert cost.each == pytest.approx(TOKEN * TOKENS, rel=0.05)
    assert cost.seconds(2) > cost.seconds(4) / 1.5  # half as many rows take much more than half as long
    assert cost.units(cost.seconds(7)) == pytest.approx(7)


def test_of_one_size_all_counts_as_tokens_and_the_first_item_not_at_all() -> None:
    speeds = Speeds()
    assert speeds.cost("a") is None
    assert speeds.costs(["a", "b"]) is None
    cost = known(8, 8).cost("a")
    assert cost is not None
    assert cost.fixed == OVERHEAD
    assert cost.seconds(8) - OVERHEAD == pytest.approx(taken(8)[1])


def test_an_item_of_which_nothing_was_made_says_nothing() -> None:
    speeds = Speeds()
    for _ in range(3):
        speeds.add("a", Made(0, 0), 0.05)
    assert not speeds.knows("a")
    speeds = known(8, 8)
    speeds.add("a", Made(0, 0), 0.05)
    assert speeds.cost("a") == known(8, 8).cost("a")


def test_a_worker_of_which_nothing_is_known_is_like_the_others() -> None:
    speeds = known(8, 8)
    for _ in range(2):
        speeds.add("b", *(taken(8)[0], 3 * taken(8)[1]))
    costs = speeds.costs(["a", "b", "new"])
    assert costs is not None
    assert 1 / costs.of("new").each == pytest.approx((1 / costs.of("a").each + 1 / costs.of("b").each) / 2)
    assert not speeds.knows("new")
    speeds.add("new", *taken(8))
    assert not speeds.knows("new")
    speeds.add("new", *taken(8))
    assert speeds.knows("new")
    costs = speeds.costs(["a", "new"])
    assert costs is not None
    assert costs.of("new") == costs.of("a") == speeds.cost("a")
    speeds.add("new", taken(8)[0], 2 * taken(8)[1])
    again = speeds.costs(["a", "new"])
    assert again is not None
    assert again.of("new") == speeds.cost("new") != costs.of("new")


def test_whom_another_was_sooner_than_is_known_by_that_alone_until_its_next_one() -> None:
    speeds = known(*[8] * RECENT)
    made, seconds = taken(8)
    speeds.anew("a", made, 5 * seconds)
    cost = speeds.cost("a")
    assert cost is not None
    assert cost.seconds(8) == pytest.approx(5 * seconds, rel=0.05)
    assert not speeds.knows("a")
    speeds.add("a", made, seconds)  # it had been asleep
    cost = speeds.cost("a")
    assert cost is not None
    assert cost.seconds(8) == pytest.approx(seconds, rel=0.05)


def test_lengths_are_those_of_all_workers_and_items_that_go_on_count_once_they_are_over() -> None:
    speeds = known(8, 8)
    before = speeds.cost("a")
    speeds.over("a", 16, Made(2 * STEPS, 4 * TOKENS * 16))  # by whom is no matter
    after = speeds.cost("a")
    assert before is not None
    assert after is not None
    assert after.each == pytest.approx(before.each * (16 + 64) / 32)


def test_an_item_that_took_long_for_once_counts_little() -> None:
    made, seconds = taken(8)
    speeds = known(*[8] * RECENT)
    speeds.add("a", made, 12 * seconds)
    cost = speeds.cost("a")
    assert cost is not None
    assert cost.seconds(8) < 1.2 * seconds


def test_a_worker_whose_items_take_now_more_and_now_less_takes_the_mean() -> None:
    made, seconds = taken(8)
    step, token = fit([(made, seconds), (made, 4 * seconds)] * 4)
    assert step * made.steps + token * made.tokens == pytest.approx(2.5 * seconds, rel=0.02)


@given(
    st.lists(st.tuples(st.integers(1, 64), st.floats(0.8, 1.2), st.integers(20, 400)), min_size=1, max_size=RECENT),
    st.floats(0, 0.1),
    st.floats(1e-5, 0.1),
    st.lists(st.floats(0.1, 16), min_size=RECENT, max_size=RECENT),
)
def test_the_fit_is_the_best_of_those_whose_tokens_take_a_part_at_least(
    took: list[tuple[int, float, int]], step: float, token: float, weights: list[float]
) -> None:
    """Against a search of the same error, with the ridge that decides where sizes do not differ."""
    weights = weights[: len(took)]
    shown = [(Made(steps, 50 * units), (step * steps + token * 50 * units) * noise) for units, noise, steps in took]
    found = relative_fit(shown, weights)
    assert min(found) >= 0
    assert max(found) > 0

    def error(a: float, b: float) -> float:
        of = [(w, a * made.steps / t, b * made.tokens / t) for w, (made, t) in zip(weights, shown, strict=True)]
        return sum(w * ((steps + tokens - 1) ** 2 + 0.01 * steps**2) for w, steps, tokens in of)

    best = error(*found)
    least = PART * relative_fit([(replace(made, steps=0), seconds) for made, seconds in shown], weights)[1]
    assert found[1] >= least * (1 - 1e-9)
    for share in np.linspace(0, 1, 11):
        for scale in (0.7, 0.9, 1.0, 1.1, 1.4):
            a = scale * share * np.mean([seconds / made.steps for made, seconds in shown])
            b = scale * (1 - share) * np.mean([seconds / made.tokens for made, seconds in shown])
            assert b < least or best <= error(a, b) + 1e-9
