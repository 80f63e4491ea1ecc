"""Which leases are generated and when, against waves: the same rule, but that all verdicts are waited for before
more are generated.

A cluster is simulated here: workers of some paces, on which leases may be lost.
"""

import heapq
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil
from queue import SimpleQueue
from random import Random
from threading import Thread

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.batch.collection import Collection
from tasks.batch.lease import Lease
from tasks.batch.refills import Refills
from tests.tasks.batches import collect, config, groups, problem_set, rollouts, verdicts

MOST = 60  # groups, of which verdicts are made up
KNOWN = st.builds(lambda seed, rate: made_up(seed, rate), seed=st.integers(0, 10**6), rate=st.floats(0, 1))
ASKED = st.builds(
    lambda prompts, lease, times: Refills(prompts, int(prompts * times), lease),
    prompts=st.integers(1, 12),
    lease=st.integers(1, 5),
    times=st.floats(1, 5),
)
CHANCE = st.builds(Random, st.integers(0, 10**6))
PACES = st.lists(st.sampled_from((1.0, 2.5, 7.0)), min_size=1, max_size=4)


def made_up(seed: int, rate: float) -> list[bool]:
    random = Random(seed)
    return [random.random() < rate for _ in range(MOST)]


def fresh(asked: Refills) -> Refills:
    return Refills(asked.prompts, asked.bound, asked.lease)


def in_waves(asked: Refills, with_signal: Sequence[bool]) -> list[range]:
    """The leases, wave by wave."""
    ends = [0, asked.prompts]
    while ends[-1] > ends[-2]:
        teaching = sum(with_signal[: ends[-1]])
        likely = ceil((asked.prompts - teaching) * ends[-1] / max(teaching, 1))
        ends.append(ends[-1] + max(0, min(likely, asked.bound - ends[-1])))
    return [
        range(at, min(at + asked.lease, end)) for begin, end in pairwise(ends) for at in range(begin, end, asked.lease)
    ]


@dataclass
class Run:
    """A batch on workers that take so many seconds for a group, the first lease first."""

    refills: Refills
    with_signal: Sequence[bool]
    paces: Sequence[float]
    random: Random | None = None  # of deaths, and of how long leases take
    waves: bool = False

    def __post_init__(self) -> None:
        self.generated: list[range] = []
        self.judged: list[range] = []
        self.seconds = 0.0

    def moments(self) -> Iterator[None]:
        """Each verdict, once what follows from it is generated."""
        idle, busy = list(range(len(self.paces))), list[tuple[float, int, range]]()
        waiting = self._draw()
        yield
        while waiting or busy:
            while waiting and idle:
                lease, worker = heapq.heappop(waiting)[1], idle.pop(0)
                takes = len(lease) * self.paces[worker] * (self.random.uniform(0.2, 2) if self.random else 1)
                heapq.heappush(busy, (self.seconds + takes, worker, lease))
            self.seconds, worker, lease = heapq.heappop(busy)
            idle.append(worker)
            if self.random and self.random.random() < 0.1:  # the worker died, and is there again
                heapq.heappush(waiting, (lease.start, lease))
                continue
            self.judged.append(lease)
            self.refills.judged(lease.start, np.array([self.with_signal[i] for i in lease]))
            for each in self._draw():
                heapq.heappush(waiting, each)
            yield

    def _draw(self) -> list[tuple[int, range]]:
        if self.waves and not self.refills.all_judged:
            return []
        new = self.refills.draw(broken=not self.judged)
        self.generated += new
        return [(lease.start, lease) for lease in new]

    def end(self) -> "Run":
        for _ in self.moments():
            pass
        return self


@given(with_signal=KNOWN, asked=ASKED, paces=PACES, random=CHANCE)
def test_whatever_comes_first_and_whoever_dies_the_leases_are_those_of_waves(
    with_signal: list[bool], asked: Refills, paces: list[float], random: Random
) -> None:
    run = Run(fresh(asked), with_signal, paces, random).end()
    assert run.generated == in_waves(asked, with_signal)  # in order too
    # all are waited for, and each counts once
    assert sorted(run.judged, key=lambda lease: lease.start) == run.generated
    assert run.refills.generated <= max(asked.prompts, asked.bound)
    assert run.refills.all_judged
    assert run.refills.draw(broken=False) == []


@given(with_signal=KNOWN, others=st.lists(KNOWN, min_size=1, max_size=3), asked=ASKED, random=CHANCE)
def test_none_is_generated_that_another_verdict_could_make_needless(
    with_signal: list[bool], others: list[list[bool]], asked: Refills, random: Random
) -> None:
    run = Run(fresh(asked), with_signal, (1.0, 2.5, 7.0), random)
    for _ in run.moments():
        known = {i for lease in run.judged for i in lease}
        if not known:
            continue
        for other in ([True] * MOST, [False] * MOST, *others):
            possible = [with_signal[i] if i in known else other[i] for i in range(MOST)]
            assert set(run.generated) <= set(in_waves(asked, possible))


@pytest.mark.parametrize(
    ("judged", "generated"),
    [
        ({}, ""),
        ({6: "11"}, ""),
        ({6: "10"}, "8-9"),  # 1 is missing, 7 in 8 teach at most: 2 more at least
        ({6: "00"}, "8-9"),  # 3 more at least: the second lease may be longer
        ({6: "00", 0: "00"}, "8-9 10-11 12-13 14-15"),  # 8 more at least, which is the bound
        ({6: "00", 0: "11", 2: "11"}, "8-9"),
        ({6: "00", 0: "11", 2: "11", 4: "11"}, "8-9 10-10"),  # all are known
        ({6: "10", 0: "11", 2: "11", 4: "11"}, "8-9"),
    ],
)
def test_replacements_are_generated_as_soon_as_they_are_certain(judged: Mapping[int, str], generated: str) -> None:
    refills = Refills(prompts=8, bound=16, lease=2)
    assert [lease.start for lease in refills.draw(broken=True)] == [0, 2, 4, 6]
    for start, marks in judged.items():
        refills.judged(start, np.array([mark == "1" for mark in marks]))
    assert " ".join(f"{lease[0]}-{lease[-1]}" for lease in refills.draw(broken=not judged)) == generated


def test_replacements_of_replacements_do_not_wait_either() -> None:
    refills = Refills(prompts=4, bound=100, lease=2)
    assert refills.draw(broken=True) == [range(2), range(2, 4)]
    refills.judged(0, np.array([False, False]))
    assert refills.draw(broken=False) == [range(4, 6), range(6, 8)]  # half of them teach at best
    refills.judged(6, np.array([False, False]))  # of the first four nobody knows yet whether they need more than that
    assert refills.draw(broken=False) == []
    refills.judged(2, np.array([True, True]))
    # the first round is these two; of 8 groups 4 can teach
    assert refills.draw(broken=False) == []
    refills.judged(4, np.array([False, True]))
    assert refills.draw(broken=False) == [range(8, 10), range(10, 11)]  # 1 is missing, 3 in 8 teach


def test_nothing_is_replaced_before_a_verifier_has_judged_something() -> None:
    refills = Refills(prompts=4, bound=100, lease=2)
    refills.draw(broken=True)
    refills.judged(2, np.array([False, False]))
    assert refills.draw(broken=True) == []
    refills.judged(0, np.array([False, False]))
    assert refills.draw(broken=True) == []
    assert len(refills.draw(broken=False)) == 8


@given(with_signal=KNOWN, again=KNOWN, asked=ASKED, random=CHANCE, share=st.floats(0, 1))
def test_what_verdicts_that_were_taken_back_had_drawn_is_taken_back(
    with_signal: list[bool], again: list[bool], asked: Refills, random: Random, share: float
) -> None:
    run = Run(fresh(asked), with_signal, (1.0, 2.5), random).end()
    wrong = {lease.start for lease in run.judged if random.random() <= share}
    if not wrong:
        return
    end = run.refills.reopen(wrong)
    kept = [lease for lease in run.generated if lease.start < end]
    assert kept == in_waves(asked, with_signal)[: len(kept)]
    assert min(wrong) < end
    made = {i: again[i] for lease in kept if lease.start in wrong for i in lease}
    by_then = [made.get(i, with_signal[i] if i < end else again[i]) for i in range(MOST)]
    assert kept == in_waves(asked, by_then)[: len(kept)]  # their cut does not follow from what was wrong
    redrawn = run.refills.draw(broken=False)
    waiting = [*(lease for lease in kept if lease.start in wrong), *redrawn]
    while waiting:
        lease = waiting.pop(random.randrange(len(waiting)))
        run.refills.judged(lease.start, np.array([by_then[i] for i in lease]))
        new = run.refills.draw(broken=False)
        redrawn, waiting = redrawn + new, waiting + new
    assert kept + redrawn == in_waves(asked, by_then)
    assert run.refills.all_judged


@pytest.mark.parametrize(
    ("paces", "lease", "rate", "shorter"),
    [
        ((1.0, 1.0, 2.0, 4.0), 4, 0.8, 0.2),
        ((1.0, 1.0, 2.0, 4.0), 4, 0.5, 0.03),
        ((1.0, 3.0), 16, 0.2, 0.25),
        ((1.0, 3.0), 4, 0.5, 0.0),
        ((1.0, 1.0), 4, 0.5, 0.0),
    ],
)
def test_who_is_slow_holds_up_fewer(paces: tuple[float, ...], lease: int, rate: float, shorter: float) -> None:
    """Mean over batches; a lease that is there sooner could go to a slower worker, and so end later."""
    made = []
    for waves in (True, False):
        seconds = 0.0
        for seed in range(40):
            asked = Refills(30, MOST, lease)
            seconds += Run(asked, made_up(seed, rate), paces, waves=waves).end().seconds
        made.append(seconds)
    assert made[1] <= (1 - shorter) * made[0]


@pytest.mark.parametrize("seed", range(10))
def test_a_collection_is_the_same_batch_whichever_lease_is_back_first(seed: int) -> None:
    random = Random(seed)
    asked = config(prompts=9, lease=2, oversample=4)
    with_signal = [random.random() < 0.4 for _ in range(36)]
    collection = Collection(5, problem_set(), asked)
    drawn: SimpleQueue[Lease | None] = SimpleQueue()

    def generate() -> None:
        for leases in collection.draws():
            for lease in leases:
                drawn.put(lease)
        drawn.put(None)

    generating = Thread(target=generate, daemon=True)
    generating.start()
    out: list[Lease] = []
    made: list[range] = []
    for lease in iter(lambda: drawn.get(timeout=30), None):
        out.append(lease)
        made.append(lease.groups)
        while out and (drawn.empty() or random.random() < 0.5):
            one = out.pop(random.randrange(len(out)))
            collection.arrive(one, rollouts(one, asked.samples))
            collection.judged(one, rollouts(one, asked.samples), verdicts(one, with_signal, asked.samples))
    generating.join(30)
    found, in_turn = collection.collected(), collect(asked, with_signal)
    assert made == [each for leases in in_turn[1] for each in leases]
    assert groups(found) == groups(in_turn[0])
    assert found.figures() == in_turn[0].figures()
    assert np.array_equal(found.batch.rollouts.tokens, in_turn[0].batch.rollouts.tokens)
