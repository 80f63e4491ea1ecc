"""Placements against brute force, and against steps that a person can add up."""

from dataclasses import replace
from functools import partial
from itertools import chain, combinations, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from infra.planning.costs import Costs, PlanError
from infra.planning.plan import plan, predicted, relaxed
from infra.planning.simulation import simulate
from tests.infra.planning.works import step_of, work, work_of

pytestmark = pytest.mark.slow

WORKERS = ("a", "b", "c", "d")
GB = 1e9


step = partial(step_of, leases=4)


def subsets(names: tuple[str, ...]) -> list[tuple[str, ...]]:
    return list(chain.from_iterable(combinations(names, n) for n in range(1, len(names) + 1)))


def by_force(costs: Costs) -> float:
    """The smallest T of all placements: the shares of each by a linear program without integers."""
    best = np.inf
    options = [
        [(w,) for w in sorted(call.seconds)] if call.each == "batch" else subsets(tuple(sorted(call.seconds)))
        for call in costs.calls
    ]
    for chosen in product(*options):
        places = dict(zip((call.name for call in costs.calls), chosen, strict=True))
        if not costs.fits(places):
            continue
        columns = [(call, w) for call in costs.calls for w in places[call.name]]
        loads, fixed = [], []
        for worker in WORKERS:
            held = {call.holds for call in costs.calls if worker in places[call.name]}
            fixed.append(-sum(costs.fetching.get((one, worker), 0.0) for one in held if one is not None))
            loads.append([call.alone(w, costs.leases) if w == worker else 0.0 for call, w in columns] + [-1.0])
        for machine, cores in costs.cores.items():
            here = [w for w in WORKERS if costs.machine.get(w) == machine]
            own = [call.alone(w, costs.leases) * call.wants(w) if w in here else 0.0 for call, w in columns]
            loads.append([*own, -cores])
            fixed.append(0.0)
        sums = [[float(call is each) for each, _ in columns] + [0.0] for call in costs.calls]
        goal = [0.0] * len(columns) + [1.0]
        found = linprog(goal, A_ub=loads, b_ub=fixed, A_eq=sums, b_eq=[1.0] * len(sums))
        if found.status == 0:
            best = min(best, found.fun)
    return float(best)


SECONDS = st.dictionaries(st.sampled_from(WORKERS), st.floats(0.1, 10), min_size=1, max_size=4)
MANY = st.dictionaries(st.sampled_from(WORKERS), st.floats(0.1, 10), min_size=3, max_size=4)


@settings(max_examples=10, deadline=None)
@given(
    MANY,
    MANY,
    SECONDS,
    st.dictionaries(st.sampled_from(WORKERS), st.sampled_from([1 * GB, 3 * GB, 5 * GB]), max_size=4),
    st.dictionaries(st.tuples(st.just("actor"), st.sampled_from(WORKERS)), st.floats(0, 5), max_size=4),
    st.dictionaries(st.sampled_from(WORKERS), st.just("m"), max_size=4),
    st.sampled_from([0.5, 1.0, 2.0]),
)
def test_the_program_finds_the_best_of_all_placements(
    generate: dict[str, float],
    score: dict[str, float],
    train: dict[str, float],
    memory: dict[str, float],
    fetching: dict[tuple[str, str], float],
    machine: dict[str, str],
    cores: float,
) -> None:
    calls = (
        replace(work("generate", generate), computing={"a": 0.5, "b": 2.0}, fixed={"a": 0.3, "c": 0.1}),
        work("reference", score, "generate", model="reference"),
        work("train", train, "generate", "reference", batch=True),
    )
    size = {"actor": 1 * GB, "reference": 2 * GB, "actor in training": 4 * GB}
    costs = Costs(calls, 4, size, memory, fetching, machine, {"m": cores})
    least = by_force(costs)
    if least == np.inf:
        with pytest.raises(PlanError, match="fit"):
            relaxed(costs)
        return
    found = relaxed(costs)
    assert found.seconds == pytest.approx(least, rel=1e-4)
    assert costs.fits(found.places)
    for by in found.shares.values():
        assert sum(by.values()) == pytest.approx(1, abs=0.01)
    for worker in WORKERS:
        mine = [(call, found.shares[call.name][worker]) for call in calls if worker in found.shares[call.name]]
        load = sum(share * call.alone(worker, costs.leases) for call, share in mine)
        assert load <= found.seconds * 1.01 + 1e-6


@settings(max_examples=8, deadline=None)
@given(SECONDS, SECONDS, SECONDS, st.sampled_from([0, 1, 3]), st.sampled_from([1.0, 2.0, 9.0]))
def test_no_simulated_step_is_shorter_than_the_bound(
    generate: dict[str, float], verify: dict[str, float], train: dict[str, float], staleness: int, cores: float
) -> None:
    costs = step(generate, verify, train, machine=dict.fromkeys("abc", "m"), cores={"m": cores}, cut=staleness == 1)
    whole, *others = costs.calls
    costs = replace(costs, calls=(replace(whole, fixed={"b": 0.5, "d": 2.0}), *others))
    # the first and the last of the steps that are looked at share what lies between them and others
    assert plan(costs, staleness).seconds >= relaxed(costs).seconds * (1 - 1.5 * staleness / 8) - 1e-9


def _some(generator: np.random.Generator) -> dict[str, float]:
    count = int(generator.integers(2, 4))
    return {str(w): float(np.exp(generator.normal())) for w in generator.choice(WORKERS, count, replace=False)}


@pytest.mark.parametrize("staleness", [1, 2, 4])
def test_a_simulated_step_is_that_of_the_long_run(staleness: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(staleness)
    cases = [step(_some(generator), _some(generator), _some(generator)) for _ in range(6)]
    places = [
        {"generate": tuple(sorted(work_of(costs, "generate").seconds)),
         "verify": (min(work_of(costs, "verify").seconds),),
         "train": (min(work_of(costs, "train").seconds),)} for costs in cases
    ]  # fmt: skip
    found = [simulate(*each, staleness).seconds for each in zip(cases, places, strict=True)]
    monkeypatch.setattr("infra.planning.simulation.STEPS", 60)
    assert found == pytest.approx(
        [simulate(*each, staleness).seconds for each in zip(cases, places, strict=True)], rel=0.05
    )


@pytest.mark.parametrize("few", [1000, 0])
@pytest.mark.parametrize("staleness", [0, 2])
def test_the_plan_is_the_best_of_all_placements(staleness: int, few: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.planning.plan.FEW", few)  # 0: by changes of one worker, as where placements are many
    generator, ratios = np.random.default_rng(staleness), []
    for number in range(8):
        shared = {"machine": dict.fromkeys("abc", "m"), "cores": {"m": 1.5}} if number % 2 else {}
        costs = step(_some(generator), _some(generator), _some(generator), **shared)
        best = min(
            simulate(costs, {"generate": g, "verify": v, "train": (t,)}, staleness).seconds
            for g in subsets(tuple(sorted(work_of(costs, "generate").seconds)))
            for v in subsets(tuple(sorted(work_of(costs, "verify").seconds)))
            for t in sorted(work_of(costs, "train").seconds)
        )
        ratios.append(plan(costs, staleness).seconds / best)
    assert min(ratios) >= 1 - 1e-9
    if few:
        assert max(ratios) <= 1.006  # by the margin
    else:
        assert np.mean(ratios) <= 1.03
        assert max(ratios) <= 1.25


def test_on_policy_a_step_is_the_sum_of_what_waits_for_each_other() -> None:
    costs = step({"a": 4.0}, {"b": 2.0}, {"c": 3.0}, handing_over=0.25, fetching={("actor", "a"): 0.5})
    only = {"generate": ("a",), "verify": ("b",), "train": ("c",)}
    # four leases of 1 s, the last verified in .5, trained in 3, handed over, fetched
    assert simulate(costs, only, 0).seconds == pytest.approx(4 + 0.5 + 3 + 0.25 + 0.5)
    assert simulate(costs, only, 2).seconds == pytest.approx(4.5)  # of the busiest worker
    busy = simulate(costs, only, 2).busy
    assert busy == pytest.approx({"a": 4.5, "b": 2.0, "c": 3.0})


def test_idle_workers_pull_what_there_is() -> None:
    costs = step({"fast": 4.0, "slow": 12.0}, {"v": 0.0}, {"t": 0.0})
    found = simulate(costs, {"generate": ("fast", "slow"), "verify": ("v",), "train": ("t",)}, 0)
    assert found.seconds == pytest.approx(3.0)  # three of 1 s by one, one of 3 s by the other
    assert found.shares["generate"] == pytest.approx({"fast": 0.75, "slow": 0.25})


def test_a_slow_worker_is_left_out_where_all_wait_for_its_lease() -> None:
    costs = step({"fast": 4.0, "slow": 40.0}, {"v": 0.1}, {"t": 1.0})
    assert plan(costs, 0).places["generate"] == ("fast",)
    everyone = {"generate": ("fast", "slow"), "verify": ("v",), "train": ("t",)}
    assert predicted(costs, everyone, 0).seconds > 2 * plan(costs, 0, everyone).seconds


def test_the_present_placement_stays_where_none_is_better() -> None:
    costs = step({"a": 1.0, "b": 1.0}, {"a": 0.0, "b": 0.0}, {"c": 5.0})
    present = {"generate": ("b",), "verify": ("a", "b"), "train": ("c",)}
    assert plan(costs, 1, present).places == present


def test_a_slow_link_is_worth_leaving_a_worker_out() -> None:
    costs = step({"a": 30.0, "far": 30.0}, {"v": 0.1}, {"t": 1.0}, fetching={("actor", "far"): 120.0})
    found = relaxed(costs)
    assert found.places["generate"] == ("a",)
    assert found.seconds == pytest.approx(30)


def test_a_model_that_fits_nowhere_is_named_with_the_worker() -> None:
    costs = step(
        {"a": 1.0},
        {"a": 1.0},
        {"a": 1.0, "b": 1.0},
        size={"actor in training": 12 * GB},
        memory={"a": 4 * GB, "b": 8 * GB},
    )
    with pytest.raises(
        PlanError, match=r"actor in training \(12 GB\) fits on no worker that may run train: b, the lar"
    ):
        plan(costs, 1)


def test_models_that_do_not_fit_together_are_named() -> None:
    costs = step(
        {"a": 1.0}, {"a": 1.0}, {"a": 1.0}, size={"actor": 2 * GB, "actor in training": 3 * GB}, memory={"a": 4 * GB}
    )
    with pytest.raises(PlanError, match=r"do not fit together \(actor 2 GB, actor in training 3 GB\).*\(a 4 GB\)"):
        plan(costs, 1)
    with pytest.raises(PlanError, match=r"actor and actor in training \(5 GB\) do not fit on a, which has 4 GB"):
        predicted(costs, {"generate": ("a",), "verify": ("a",), "train": ("a",)}, 1)


def test_a_call_without_a_worker_is_named() -> None:
    with pytest.raises(PlanError, match="no worker may run verify"):
        plan(step({"a": 1.0}, {}, {"a": 1.0}), 0)
    costs = step({"a": 1.0}, {"a": 1.0}, {"a": 1.0, "b": 1.0})
    with pytest.raises(PlanError, match="train on a and b cannot be planned"):
        predicted(costs, {"generate": ("a",), "verify": ("a",), "train": ("a", "b")}, 0)


def test_leases_that_are_cut_are_simulated_as_such_where_steps_overlap() -> None:
    costs = step({"a": 4.0, "b": 12.0}, {"c": 0.01}, {"d": 0.01}, leases=2)
    places = {"generate": ("a", "b"), "verify": ("c",), "train": ("d",)}
    whole, cut = (simulate(replace(costs, cut=given), places, 1).seconds for given in (False, True))
    assert cut == pytest.approx(3.0, rel=0.05)  # three quarters are done by the one, a quarter by the other
    assert cut < whole
    assert simulate(replace(costs, cut=True), places, 0) == simulate(costs, places, 0)


def test_a_lease_takes_what_does_not_depend_on_its_size_once_a_step_where_it_is_cut_to_size() -> None:
    calls = (
        replace(work("generate", {"a": 2.0}), fixed={"a": 1.0}),
        work("train", {"d": 0.01}, "generate", batch=True),
    )
    costs, places = Costs(calls, 4), {"generate": ("a",), "train": ("d",)}
    assert simulate(costs, places, 1).seconds == pytest.approx(2.0 + 4 * 1.0, rel=0.01)
    assert simulate(replace(costs, cut=True), places, 1).seconds == pytest.approx(2.0 + 1.0, rel=0.01)
    assert relaxed(costs).seconds == pytest.approx(6.0, rel=0.01)
    assert relaxed(replace(costs, cut=True)).seconds == pytest.approx(3.0, rel=0.01)
