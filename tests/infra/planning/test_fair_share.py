"""Processes that share cores, against a machine that hands them out in small slices."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.planning.costs import Costs, Work
from infra.planning.fair_share import rates
from infra.planning.simulation import simulate

WANTS = st.dictionaries(st.sampled_from("abcdef"), st.floats(1, 4), min_size=1)


def in_slices(wants: dict[str, float], cores: float, slice_: float = 1e-4) -> dict[str, float]:
    """The pace of each, by handing out cores a slice at a time to whoever has the fewest for each of its threads."""
    has = dict.fromkeys(wants, 0.0)
    left = cores
    while left > 0 and (lacking := [name for name in wants if has[name] < wants[name]]):
        poorest = min(lacking, key=lambda name: has[name] / max(1.0, wants[name]))
        has[poorest] += slice_
        left -= slice_
    return {name: min(1.0, has[name] / wants[name]) for name in wants}


def test_threads_share_cores_alike() -> None:
    assert rates({"a": 1.0, "b": 1.0}, 2) == {"a": 1.0, "b": 1.0}
    assert rates({"a": 1.0, "b": 1.0, "c": 1.0}, 2) == pytest.approx(dict.fromkeys("abc", 2 / 3))
    assert rates({"four": 4.0, "one": 1.0}, 4) == pytest.approx({"four": 0.8, "one": 0.8})
    assert rates({"a": 1.0, "b": 1.0}, 2, others=2.0) == pytest.approx({"a": 0.5, "b": 0.5})
    assert rates({"idle": 0.0, "a": 3.0}, 2) == pytest.approx({"idle": 1.0, "a": 2 / 3})


def test_whoever_computes_now_and_then_waits_less() -> None:
    found = rates({"slow": 1 / 3, "b": 1.0, "c": 1.0}, 2)
    assert found["slow"] == pytest.approx(1 / (2 / 3 + 1 / (3 * found["b"])))  # it waits where it is ready
    assert found["slow"] / 3 + 2 * found["b"] == pytest.approx(2)


@pytest.mark.slow
@pytest.mark.parametrize(("want", "count", "cores"), [(0.3, 60, 10.0), (0.7, 40, 20.0), (0.5, 60, 29.0)])
def test_the_mean_values_are_those_of_many_processes(want: float, count: int, cores: float) -> None:
    """Each computes for a random while, then waits for something for another; all that compute share the cores."""
    generator = np.random.default_rng(0)
    computing = np.ones(count, bool)
    left = generator.exponential(want, count)
    moment, done, moments = 0.01, 0.0, 20_000
    for _ in range(moments):
        pace = min(1.0, cores / max(1, computing.sum()))
        done += moment * computing.sum() * pace
        left -= np.where(computing, moment * pace, moment)
        over = left <= 0
        computing ^= over
        left[over] = generator.exponential(np.where(computing[over], want, 1 - want))
    used = done / (moment * moments)
    found = rates({str(n): want for n in range(count)}, cores)["0"]
    assert count * want * found == pytest.approx(used, rel=0.03)


@settings(max_examples=10, deadline=None)
@given(WANTS, st.floats(0.5, 4))
def test_the_pace_is_that_of_cores_in_slices(wants: dict[str, float], cores: float) -> None:
    found = rates(wants, cores)
    assert found == pytest.approx(in_slices(wants, cores), abs=5e-3)
    used = sum(want * found[name] for name, want in wants.items())
    assert used == pytest.approx(min(cores, sum(wants.values())))


def both(seconds: float, **more: object) -> Costs:
    """Two workers that generate beside each other, and one elsewhere that trains."""
    calls = (
        Work("generate", "actor", "lease", (), trains=False, seconds={"a": seconds, "b": seconds}),
        Work("train", "actor", "batch", ("generate",), trains=True, seconds={"t": 0.0}),
    )
    return Costs(calls, 4, **more)  # type: ignore[arg-type]


PLACES = {"generate": ("a", "b"), "train": ("t",)}


@pytest.mark.parametrize(("cores", "step"), [(2.0, 2.0), (1.5, 2 / 0.75), (1.0, 4.0), (0.5, 8.0)])
def test_workers_of_one_machine_slow_each_other_down(cores: float, step: float) -> None:
    costs = both(4.0, machine={"a": "m", "b": "m"}, cores={"m": cores})
    found = simulate(costs, PLACES, 0)
    assert found.seconds == pytest.approx(step)
    assert found.busy == pytest.approx({"a": 2.0, "b": 2.0, "t": 0.0})  # waits for a core are not their work
    assert found.computed == pytest.approx({"m": 4.0})


def test_workers_of_machines_of_their_own_do_not() -> None:
    costs = both(4.0, machine={"a": "m", "b": "other"}, cores={"m": 1.0, "other": 1.0})
    assert simulate(costs, PLACES, 0).seconds == pytest.approx(2.0)


def test_an_item_goes_faster_once_another_has_ended() -> None:
    calls = (
        Work("generate", "actor", "lease", (), trains=False, seconds={"a": 1.0}),
        Work("score", "actor", "lease", (), trains=False, seconds={"b": 3.0}),
        Work("train", "actor", "batch", ("generate", "score"), trains=True, seconds={"t": 0.0}),
    )
    costs = Costs(calls, 1, machine={"a": "m", "b": "m"}, cores={"m": 1.0})
    places = {"generate": ("a",), "score": ("b",), "train": ("t",)}
    # 2 s side by side at half the pace, of which 1 s of the longer one is done, then 2 s alone
    assert simulate(costs, places, 0).seconds == pytest.approx(4.0)


@settings(max_examples=10, deadline=None)
@given(st.lists(st.tuples(st.floats(0.2, 3), st.floats(1, 2)), min_size=2, max_size=4), st.floats(0.5, 3))
def test_a_step_is_that_of_a_machine_in_small_moments(each: list[tuple[float, float]], cores: float) -> None:
    names = [f"w{n}" for n in range(len(each))]
    calls = [
        Work(f"call-{name}", None, "lease", (), trains=False, seconds={name: seconds}, computing={name: wants})
        for name, (seconds, wants) in zip(names, each, strict=True)
    ]
    before = tuple(call.name for call in calls)
    train = Work("train", "actor", "batch", before, trains=True, seconds={"t": 0.0})
    costs = Costs((*calls, train), 1, machine=dict.fromkeys(names, "m"), cores={"m": cores})
    places = {call.name: tuple(call.seconds) for call in costs.calls}
    left = {name: seconds for name, (seconds, _) in zip(names, each, strict=True)}
    wants = {name: want for name, (_, want) in zip(names, each, strict=True)}
    now, moment = 0.0, 2e-3
    paces = in_slices(wants, cores, 1e-3)
    while left:
        left = {name: rest - moment * paces[name] for name, rest in left.items()}
        if any(rest <= 0 for rest in left.values()):
            left = {name: rest for name, rest in left.items() if rest > 0}
            paces = in_slices({name: wants[name] for name in left}, cores, 1e-3) if left else {}
        now += moment
    assert simulate(costs, places, 0).seconds == pytest.approx(now, rel=0.02, abs=0.02)
