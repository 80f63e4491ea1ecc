"""Items that are cut to what suits each worker, in simulated time, whoever is slow, dies or joins."""

from collections import Counter
from dataclasses import replace
from itertools import pairwise
from math import exp
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from infra.dispatch.items import Item
from infra.dispatch.schedule import LOOKS, MANY, Schedule
from infra.dispatch.shares import Sizes
from infra.dispatch.speeds import Made
from tests.infra.dispatch.generators import LENGTH, LONGEST, Cluster, Generator

SIZES = Sizes(first=8, seconds=30.0)


def cutting() -> Schedule:
    count = Counter({0: 1})

    def cut(item: Item, units: int) -> Item:
        count[item.batch] += 1
        return replace(item, index=count[item.batch] - 1, units=item.units - units)

    return Schedule(10, cut=cut)


def item(units: int, **more: object) -> Item:
    return replace(Item((1,), 0, 0, units=units, sizes=SIZES), **more)  # type: ignore[arg-type]


def units(leases: list) -> list[tuple[str, int]]:  # type: ignore[type-arg]
    return [(lease.worker, lease.item.units) for lease in leases]


def test_before_anything_is_known_idle_workers_get_equal_parts_and_no_more_than_the_first_size() -> None:
    schedule = cutting()
    schedule.add([item(14)])
    assert units(schedule.hand_out(["a", "b"], 0)) == [("a", 7), ("b", 7)]
    schedule = cutting()
    schedule.add([item(100)])
    assert units(schedule.hand_out(["a", "b", "c"], 0)) == [("a", 8), ("b", 8), ("c", 8)]


def test_what_somebody_has_begun_stays_as_it_is() -> None:
    schedule = cutting()
    schedule.add([item(4)])
    (lease,) = schedule.hand_out(["a"], 0)
    schedule.failed[lease.item].add("a")
    schedule.give_back(lease)
    assert units(schedule.hand_out(["b", "c"], 1)) == [("b", 4)]
    schedule = cutting()
    schedule.add([item(8, slice=1), item(8, index=1, without=frozenset({"c"}))])
    assert units(schedule.hand_out(["a", "b"], 1)) == [("a", 8), ("b", 8)]


def test_what_nobody_has_begun_is_cut_anew_when_it_is_taken_back() -> None:
    schedule = cutting()
    schedule.add([item(8)])
    schedule.hand_out(["a"], 0)
    assert [each.units for each in (lease.item for lease in schedule.take_back())] == [8]
    assert units(schedule.hand_out(["a", "b"], 1)) == [("a", 4), ("b", 4)]


def test_what_a_worker_died_of_is_cut_anew_and_each_part_counts_its_death() -> None:
    schedule = cutting()
    schedule.add([item(8)])
    (lease,) = schedule.hand_out(["fast"], 0)
    schedule.give_back(lease)
    schedule.deaths.add(lease.item, "fast")
    parts = schedule.hand_out(["a", "b"], 1)
    assert units(parts) == [("a", 4), ("b", 4)]
    assert [schedule.deaths.of(part.item).total() for part in parts] == [1, 1]


SPEEDS = st.lists(st.floats(0.02, 0.6), min_size=1, max_size=5)  # seconds of a prompt


@settings(max_examples=30, deadline=None)
@given(SPEEDS, st.floats(0, 2.0), st.integers(8, 48), st.integers(0, 3), st.integers(0, 99))
@example([0.375, 0.375, 0.375, 0.3125], 0.0, 15, 1, 0)
@example([0.125, 0.125, 0.15625, 0.15625, 0.15625], 1.0, 8, 0, 0)
def test_every_prompt_is_done_once_in_little_more_time_than_is_needed_and_workers_have_their_share(
    speeds: list[float], step: float, prompts: int, ahead: int, seed: int
) -> None:
    """Against the best that there is: all work, all the time, in items of the sizes that they had."""
    workers = {
        f"w{at}": Generator(seconds / LENGTH, step * seconds / 40, first=5.0) for at, seconds in enumerate(speeds)
    }
    cluster, batches = Cluster(workers, SIZES, noise=0.1, seed=seed), 16
    cluster.run(batches, prompts, 16, ahead)
    assert sum(cluster.done.values()) == batches * prompts
    of = {name: [each for each in cluster.leases if each[0] == name] for name in workers}
    warm = max(to for each in of.values() for _, _, _, to in each[:2])  # what each takes is known by then
    took = cluster.now - warm
    spans = {name: [each for each in mine if each[2] >= warm] for name, mine in of.items()}
    busy = {name: sum(to - at for _, _, at, to in each) for name, each in spans.items()}
    did = {name: sum(units for _, units, _, _ in each) for name, each in spans.items()}
    rate = sum(did[name] / busy[name] for name in workers if did[name])
    longest = max(each.seconds(1) for each in workers.values())
    of_one = [busy[name] / did[name] for name in workers if did[name]]
    ends = sorted(count * each for each in of_one for count in range(1, prompts + 1))
    whole = next((end for end in ends if sum(int(end / each + 1e-6) for each in of_one) >= prompts), 0.0)
    batch = prompts / rate if ahead and rate else whole  # of prompts that are not cut, where nothing follows
    best = batch * sum(did.values()) / prompts
    assert not rate or took <= 1.25 * best + 6 * longest  # who is slow is tried more and more rarely
    for name, each in workers.items():
        if ahead and rate and 4 * each.seconds(1) < prompts / rate:  # else a batch may be over before it is
            # one that goes on over the beginning may be a whole batch: who is known first takes what there is
            working = sum(to - max(at, warm) for _, _, at, to in of[name] if to > warm)
            assert working > 0.85 * took - 2 * longest


DYING = st.lists(
    st.tuples(st.floats(0.05, 0.5), st.floats(0, 30), st.floats(1, 60)), min_size=0, max_size=4
)  # seconds of a prompt, when it joins, and how long it lives


@settings(max_examples=30, deadline=None)
@example([(0.5, 0.0, 1.0), (0.5, 1.25, 1.0)], 0.0625, 1, 0, False, 0)  # ends while one has its first lease yet
@given(DYING, st.floats(0.05, 0.5), st.integers(1, 40), st.integers(0, 2), st.booleans(), st.integers(0, 99))
def test_whoever_joins_and_dies_every_prompt_is_done_once_and_nobody_starves(
    dying: list[tuple[float, float, float]], stays: float, prompts: int, ahead: int, cut: bool, seed: int
) -> None:
    workers = {"stays": Generator(stays / LENGTH)} | {
        f"w{at}": Generator(seconds / LENGTH, joins=joins, dies=joins + lives)
        for at, (seconds, joins, lives) in enumerate(dying)
    }
    cluster = Cluster(workers, SIZES if cut else None, noise=0.2, seed=seed)
    cluster.run(8, prompts, 4, ahead)
    assert sum(cluster.done.values()) == 8 * prompts
    left = cluster.schedule.assignments
    assert all(each.is_first and not cluster.schedule.wants(each) for each in left)  # another one has done it
    assert sorted(cluster.took) == list(range(8))
    longest = max(each.seconds(8) for each in workers.values())
    assert cluster.now <= 8 * prompts * stays * 1.2 + (len(dying) + 1) * 2 * longest + 8 * ahead + 10


@pytest.mark.parametrize("step", [0.0, 0.001, 0.004])
def test_tokens_are_shared_as_speeds_are(step: float) -> None:
    """Two generators, one three times as slow: issue 13's figure."""
    workers = {"fast": Generator(0.001, step), "slow": Generator(0.003, 3 * step)}
    cluster = Cluster(workers, SIZES, noise=0.1)
    cluster.run(40, 32, 16, 1)
    rate = {name: cluster.done[name] / cluster.busy[name] for name in workers}
    share = rate["slow"] / sum(rate.values())
    assert cluster.done["slow"] / sum(cluster.done.values()) == pytest.approx(share, rel=0.15)
    assert cluster.busy["slow"] > 0.95 * cluster.now


@pytest.mark.parametrize("times", [3, 8])
def test_a_generator_that_has_become_slow_is_soon_known_as_one_and_batches_take_no_longer_than_without_it(
    times: int,
) -> None:
    workers = {"steady": Generator(1 / LENGTH), "slowed": Generator(1 / LENGTH, slows=100.0, times=times)}
    cluster = Cluster(workers, SIZES, noise=0.1, late_after=10.0)
    cluster.run(24, 32, 8, 0)
    ends = sorted(cluster.took.values())
    last = [later - earlier for earlier, later in pairwise(ends)][-10:]
    assert (
        sum(last) / len(last) < 32
    )  # what the steady one alone would need; 26 with the other's third, 28 with its eighth
    known = cluster.schedule.speeds.cost("slowed")
    assert known is not None
    assert known.each == pytest.approx(times, rel=0.3)


@pytest.mark.parametrize("noise", [0.1, 0.3])
@pytest.mark.parametrize("count", [2, 8])
def test_no_lease_takes_much_longer_than_it_should_whatever_times_vary_by(count: int, noise: float) -> None:
    alike = Generator(token=21 / 8 / LENGTH, step=9 / LONGEST)  # 8 prompts take 30 s, of which steps take 9
    for seed in range(3):
        cluster = Cluster({f"w{at}": alike for at in range(count)}, SIZES, noise=noise, seed=seed)
        cluster.run(12, 16 * count, 8, 1)
        assert max(to - at for _, _, at, to in cluster.leases) < 2.5 * SIZES.seconds


def test_of_many_idle_workers_the_fastest_are_looked_at_in_each_turn_and_all_in_their_turn() -> None:
    schedule = cutting()
    everybody = ["fast", *(f"w{at}" for at in range(2 * MANY)), "second"]
    for worker in everybody:
        for _ in range(2):
            schedule.add([replace(item(8), batch=-1, order=(-1,), sizes=None)])
            (lease,) = schedule.hand_out([worker], 0)
            schedule.finished(lease, 1)
            seconds = {"fast": 0.8, "second": 1.6}.get(worker, 800.0)
            schedule.measured(lease, Made(1.0, 8.0), seconds, first=True, over=True)
            schedule.done(lease)
    schedule.add([item(8)])
    assert units(schedule.hand_out(["fast"], 10)) == [("fast", 8)]
    schedule.add([replace(item(1), batch=1, order=(2,))])
    looked: list[str] = []
    share = schedule._share
    schedule._share = lambda of, worker: looked.append(worker) or share(of, worker)  # type: ignore[method-assign, func-returns-value]
    for turn in range(2 * MANY // LOOKS - 1):
        assert units(schedule.hand_out(everybody[:-1], 10.1)) == []  # the fast one will have done it before
        assert len(set(looked)) == LOOKS + (turn + 1) * LOOKS
    looked.clear()
    assert units(schedule.hand_out(everybody, 10.1)) == [("second", 1)]
    assert looked[0] == "second"  # whoever is idle for longer


def test_what_failed_on_the_fastest_of_many_idle_workers_goes_to_the_next_fastest_at_once() -> None:
    schedule = cutting()
    everybody = [f"w{at}" for at in range(5 * MANY)]
    for at, worker in enumerate(everybody):
        for _ in range(2):
            schedule.add([replace(item(8), batch=-1, order=(-1,), sizes=None)])
            (lease,) = schedule.hand_out([worker], 0)
            schedule.finished(lease, 1)
            schedule.measured(lease, Made(1.0, 8.0), 1.0 + at / 10, first=True, over=True)
            schedule.done(lease)
    for turn in range(3):
        schedule.add([replace(item(1), index=turn, without=frozenset(everybody[: MANY + turn]), sizes=None)])
        (lease,) = schedule.hand_out(everybody, 10 + turn)
        assert lease.worker == everybody[MANY + turn]
        schedule.finished(lease, 10 + turn)
        schedule.done(lease)


@pytest.mark.parametrize(
    "special",
    [Generator(0.1 / LENGTH, joins=60.0), Generator(3 / LENGTH, slows=60.0, times=0.1 / 3)],
    ids=["joins", "was slow"],
)
@pytest.mark.parametrize(("others", "leases"), [(12, 4), (64, 16)])
def test_of_many_idle_workers_one_that_joins_or_is_fast_again_has_leases_too(
    special: Generator, others: int, leases: int
) -> None:
    rng = Random(1)
    workers = {f"w{at}": Generator(exp(rng.gauss(0, 0.35)) / LENGTH) for at in range(others)}
    cluster = Cluster({**workers, "special": special}, None)
    cluster.run(60, 4 * leases, 4, 0)
    later = [name for name, _, begun, _ in cluster.leases if begun > 100]
    assert later.count("special") > max(later.count(name) for name in workers)
    assert {name for name, *_ in cluster.leases} > workers.keys()  # nobody was left out
