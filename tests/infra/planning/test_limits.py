"""What limits steps that a person can add up."""

from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.planning.costs import Costs, Places
from infra.planning.limits import find_limits, leases_within, trainer_seconds, with_more
from infra.planning.simulation import simulate
from tests.infra.planning.works import step_of, work, work_of

NEAR = 0.15  # share by which a prediction may be off


step = partial(step_of, leases=8)


def everywhere(costs: Costs) -> Places:
    return {call.name: tuple(sorted(call.seconds)) for call in costs.calls}


@pytest.mark.parametrize(
    ("costs", "staleness", "kind", "call", "worker", "gain"),
    [
        (step({"g": 4.0}, {"v": 0.1}, {"t": 1.0}), 1, "worker", "generate", "g", 2.0),
        (step({"a": 8.0, "b": 8.0}, {"v": 0.1}, {"t": 1.0}), 1, "worker", "generate", "a", 1.5),
        (step({"a": 4.0, "b": 12.0}, {"v": 0.1}, {"t": 1.0}), 1, "worker", "generate", "a", 7 / 4),
        (step({"g": 1.0}, {"v": 4.0}, {"t": 1.0}), 1, "worker", "verify", "v", 2.0),
        (step({"g": 1.0}, {"v": 0.1}, {"t": 4.0}), 1, "trainer", "train", "t", 2.0),
        (step({"g": 1.0}, {"v": 0.1}, {"t": 1.0}, fetching={("actor", "g"): 3.0}), 1, "link", "", "", 4 / 2.5),
        (step({"g": 1.0}, {"v": 0.1}, {"t": 1.0}, handing_over=6.0), 1, "link", "", "", 2.0),
        (step({"g": 1.0}, {"v": 0.1}, {"t": 1.0}, handing_over=6.0), 4, "link", "", "", 2.0),
        (step({"g": 4.0}, {"v": 0.1}, {"t": 4.0}, handing_over=10.0), 1, "link", "", "", 10 / 6.55),
        (step({"g": 2.0}, {"v": 0.01}, {"t": 2.0}), 0, "staleness", "", "", 2.0),
        (step({"g": 6.0}, {"v": 0.01}, {"t": 1.0}), 0, "worker", "generate", "g", 7 / 4),
        (step({"w": 2.0}, {"v": 0.01}, {"w": 2.0}), 1, "worker", "generate", "w", 2.0),  # w trains alone
    ],
)
def test_what_would_help_most_is_what_limits_a_step(
    costs: Costs, staleness: int, kind: str, call: str, worker: str, gain: float
) -> None:
    best = find_limits(costs, everywhere(costs), staleness).changes[0]
    assert (best.kind, best.call, best.worker) == (kind, call, worker)
    assert best.gain == pytest.approx(gain, rel=NEAR)


def test_a_critic_s_worker_may_be_what_limits_a_step() -> None:
    both = step({"g": 1.0}, {"v": 0.1}, {"t": 1.0})
    critic = work("train_critic", {"c": 5.0}, "generate", "verify", model="critic", batch=True)
    costs = Costs((*both.calls, critic), leases=8)
    best = find_limits(costs, everywhere(costs), 1).changes[0]
    assert (best.kind, best.call, best.worker) == ("trainer", "train_critic", "c")
    assert best.gain == pytest.approx(2, rel=NEAR)


@pytest.mark.parametrize(
    ("generate", "verify", "train", "staleness", "fewest", "more"),
    [
        ({"a": 6.0, "b": 3.0, "c": 12.0}, 0.1, 3.2, 1, ("b",), 0),
        ({"a": 6.0, "b": 3.0, "c": 12.0}, 0.1, 2.2, 2, ("a", "b"), 0),
        ({"a": 6.0}, 0.1, 2.1, 2, (), 2),
        ({"a": 1.0}, 9.0, 2.0, 1, (), 0),  # a generator more would not help
        ({"a": 1.0}, 0.1, 2.0, 0, (), 0),  # the trainer waits by design
    ],
)
def test_the_fewest_generators_keep_the_trainer_busy(
    generate: dict[str, float], verify: float, train: float, staleness: int, fewest: tuple[str, ...], more: int
) -> None:
    costs = step(generate, {"v": verify}, {"t": train})
    found = find_limits(costs, everywhere(costs), staleness)
    assert (found.fewest, found.more) == (fewest, more)


@settings(max_examples=8, deadline=None)
@given(
    st.dictionaries(st.sampled_from("abc"), st.floats(1, 10), min_size=1, max_size=3),
    st.floats(0.5, 5),
    st.floats(0, 0.3),
)
def test_steps_that_overlap_take_as_long_as_throughput_says(
    generate: dict[str, float], train: float, fetching: float
) -> None:
    """Generators that are waited for do all of the leases in a step, and hardly more; others have time for more."""
    waits = {("actor", each): fetching for each in generate}
    costs = step(generate, {"v": 0.01}, {"t": train}, leases=12, fetching=waits)
    places = everywhere(costs)
    assert trainer_seconds(costs, places, 2) == pytest.approx(train, rel=0.02)
    simulated = simulate(costs, places, 2).seconds
    within = sum(leases_within(costs, places, each, simulated) for each in generate)
    assert within >= 12 * (1 - NEAR)
    if simulated > train * (1 + NEAR):
        assert within <= 12 * (1 + 2 * NEAR)


def test_a_trainer_that_waits_for_cores_alone_is_busy_all_the_same() -> None:
    """Other programs want four cores of the two that it shares with them."""
    alone = step({"a": 1.0, "b": 1.0}, {"v": 0.1}, {"t": 3.0})
    costs = step({"a": 1.0, "b": 1.0}, {"v": 0.1}, {"t": 3.0}, machine={"t": "m"}, cores={"m": 2.0}, others={"m": 4.0})
    places = everywhere(costs)
    assert trainer_seconds(costs, places, 1) > 1.5 * trainer_seconds(alone, places, 1)
    assert find_limits(costs, places, 1).fewest == find_limits(alone, places, 1).fewest == ("a",)


def test_generators_on_the_cores_of_a_busy_trainer_do_where_steps_are_no_longer_with_them() -> None:
    here = {"machine": dict.fromkeys("abt", "m"), "cores": {"m": 2.0}, "others": {"m": 2.0}}
    costs = step({"a": 2.3, "b": 2.4}, {"v": 0.1}, {"t": 8.0}, **here)
    found = find_limits(costs, everywhere(costs), 1)
    assert trainer_seconds(costs, everywhere(costs), 1) < 0.95 * found.seconds
    assert found.changes[0].kind == "trainer"
    assert found.fewest == ("a",)


def test_one_more_worker_has_a_machine_of_its_own_and_what_the_other_has() -> None:
    costs = step(
        {"w": 2.0},
        {"w": 1.0},
        {"w": 2.0},
        machine={"w": "m"},
        cores={"m": 2},
        others={"m": 1.5},
        memory={"w": 1e9},
        fetching={("actor", "w"): 0.5},
    )
    more, places = with_more(costs, everywhere(costs), "w", 2)
    one, two = (worker for worker in more.workers if worker != "w")
    assert places == {"generate": ("w", one, two), "verify": ("w", one, two), "train": ("w",)}
    assert more.machine == {"w": "m", one: one, two: two}
    assert more.cores == {"m": 2, one: 2, two: 2}
    assert more.memory[one] == 1e9
    assert more.fetching["actor", two] == 0.5
    assert work_of(more, "train").seconds == {"w": 2.0}
