"""Batches in the making: what is generated, in which order it is trained on, and how it ends.

G completions per group.
"""

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.cluster.placement import Offer
from rl.graph import AUDIT, SCORES
from rl.judging import Judgement
from tasks.batch.collection import Collection
from tasks.batch.lease import Lease
from tasks.batch.rollout_batch import RolloutBatch
from tests.tasks.batches import ALL, collect, config, groups, problem_set, rollouts, verdicts, whole


def test_the_first_leases_hold_the_step_s_prompts() -> None:
    found, draws = collect(config(prompts=7), ALL)
    assert draws == [[range(3), range(3, 6), range(6, 7)]]
    assert [problem.prompt for problem in found.batch.rollouts.problems] == [f"5/{i}" for i in range(7)]
    assert (found.groups_generated, found.groups_with_signal) == (7, 7)


@pytest.mark.parametrize(
    ("with_signal", "draws"),
    [
        ("1100 1111", [4, 4]),  # 2 are missing and half of them vary: 4 more
        ("1110 01", [4, 2]),  # 1 is missing, 3 in 4 vary: 2 more, of which one does
        ("1110 00 11", [4, 2, 2]),  # none of these did: 3 in 6 vary, 2 more
        ("0000 11111111", [4, 8]),  # nothing is known of the rate: up to the bound
        ("1000 00000000", [4, 8]),  # 12 would be likely to do, the bound is 12 in all
    ],
)
def test_groups_without_variance_are_replaced_at_the_rate_seen_up_to_the_bound(
    with_signal: str, draws: list[int]
) -> None:
    known = [mark == "1" for mark in with_signal.replace(" ", "")]
    _, generated = collect(config(), known)
    assert [sum(map(len, leases)) for leases in generated] == draws


def test_a_mean_of_right_and_wrong_is_the_pass_rate_to_the_last_bit() -> None:
    found, _ = collect(config(prompts=3, oversample=1, samples=3), [True] * 3)
    assert found.reward == found.pass_rate


def test_a_batch_that_the_bound_leaves_short_says_so() -> None:
    found, _ = collect(config(prompts=4, oversample=2), [i == 6 for i in range(8)])
    assert groups(found) == [6]
    figures = found.figures()
    assert (figures["groups/generated"], figures["groups/zero_variance"]) == (8, 7)


def test_a_batch_in_which_no_group_varies_is_empty_and_keeps_its_shape() -> None:
    found, _ = collect(config(prompts=3, oversample=1), [False] * 3)
    assert len(found.batch) == 0
    assert found.batch.rewards.shape == (0, 2)
    assert found.completions == 6
    assert found.reward == found.pass_rate == 0


def test_figures_are_of_everything_generated() -> None:
    found, _ = collect(config(prompts=2, samples=4, lease=1), [True, False, True, False])
    assert found.groups_generated == 4
    assert groups(found) == [0, 2]
    assert found.completions == 16
    assert found.reasons == {"right": 2, "wrong_value": 14}
    assert found.reward == found.pass_rate == pytest.approx(2 / 16)
    assert found.tokens == 4 * (1 + 2 + 3 + 1)
    assert found.truncated == pytest.approx(0.5)
    assert [row["completion"] for row in found.samples] == [f"answer {i}" for i in range(4)]
    assert found.figures()["reasons/right"] == pytest.approx(1 / 8)
    assert found.figures()["completion/tokens_mean"] == pytest.approx(7 / 4)


def test_graded_answers_vary_but_do_not_pass() -> None:
    collection = Collection(0, problem_set(), config(prompts=1, samples=2))
    (lease,) = next(draws := collection.draws())
    collection.arrive(lease, rollouts(lease, 2))
    collection.judged(lease, rollouts(lease, 2), Judgement(np.array([[0.5, 0.25]], np.float32), (("near", "far"),)))
    assert list(draws) == []
    found = collection.collected()
    assert (found.groups_with_signal, found.pass_rate, found.reward) == (1, 0, 0.375)


@pytest.mark.slow
@settings(deadline=None)  # of a shared machine
@given(
    with_signal=st.lists(st.booleans(), min_size=60, max_size=60),
    prompts=st.integers(1, 12),
    lease=st.integers(1, 5),
    oversample=st.floats(1, 5),
    orders=st.tuples(st.randoms(use_true_random=False), st.randoms(use_true_random=False)),
)
def test_whatever_the_verdicts_and_however_leases_arrive(
    with_signal: list[bool], prompts: int, lease: int, oversample: float, orders: tuple[Random, Random]
) -> None:
    asked = config(prompts=prompts, lease=lease, oversample=oversample)
    found, draws = collect(asked, with_signal, orders[0].shuffle)
    bound = int(prompts * oversample)

    numbers = [i for leases in draws for groups in leases for i in groups]
    assert numbers == list(range(found.groups_generated))  # none twice, none left out
    assert prompts <= found.groups_generated <= max(prompts, bound)
    assert all(len(groups) <= lease for leases in draws for groups in leases)
    usable = [i for i in numbers if with_signal[i]]
    assert found.groups_with_signal == len(usable)
    assert groups(found) == usable[:prompts]  # in order of admission
    assert len(found.batch) == prompts or found.groups_generated == bound  # constant, unless the bound was met
    before_last = [i for leases in draws[:-1] for groups in leases for i in groups]
    assert sum(with_signal[i] for i in before_last) < prompts  # the last ones were needed
    assert found.batch.rollouts.tokens[:, 0, 0].tolist() == groups(found)  # each with its own completions
    assert found.batch.rewards.max(axis=1, initial=0).tolist() == [1] * len(found.batch)

    again, generated_again = collect(asked, with_signal, orders[1].shuffle)
    assert generated_again == draws
    assert again.figures() == found.figures()
    assert again.samples == found.samples
    assert np.array_equal(again.batch.rollouts.tokens, found.batch.rollouts.tokens)
    assert np.array_equal(again.batch.rewards, found.batch.rewards)


def test_generating_and_judging_meet_in_two_threads() -> None:
    asked = config(prompts=6, lease=1)
    with_signal = [i % 2 == 1 for i in range(18)]
    collection = Collection(5, problem_set(), asked)

    def generate() -> None:
        for leases in collection.draws():
            for lease in reversed(leases):
                collection.arrive(lease, rollouts(lease, asked.samples))

    def verify() -> RolloutBatch:
        for lease, sampled in collection.arrivals():
            collection.judged(lease, sampled, verdicts(lease, with_signal, asked.samples))
        return collection.collected()

    with ThreadPoolExecutor(2) as threads:
        verifying = threads.submit(verify)
        threads.submit(generate).result(timeout=30)
        assert groups(verifying.result(timeout=30)) == [1, 3, 5, 7, 9, 11]


def test_the_generating_side_ends_when_no_verdicts_will_come() -> None:
    collection = Collection(5, problem_set(), config())
    waiting = threading.Event()
    seen = []

    def generate() -> None:
        for leases in collection.draws():
            seen.append(len(leases))
            waiting.set()

    with ThreadPoolExecutor(1) as threads:
        generating = threads.submit(generate)
        assert waiting.wait(30)
        collection.abandon()
        generating.result(timeout=30)
    assert seen == [2]
    assert list(collection.arrivals()) == []
    assert list(Collection.draws(collection)) == []  # and none starts any more


def test_the_judging_side_ends_when_generating_fails() -> None:
    collection = Collection(5, problem_set(), config(lease=2))

    def generate() -> None:
        for leases in collection.draws():
            collection.arrive(leases[0], rollouts(leases[0], 2))
            raise OSError("no generator left")

    with pytest.raises(OSError, match="no generator left"):
        generate()
    assert [lease.groups for lease, _ in collection.arrivals()] == [range(2)]


def test_what_was_found_wrong_is_made_again_as_it_was_asked_for_and_takes_its_place() -> None:
    good, bad = (Offer(f"tcp://{name}", name, {}) for name in ("good", "bad"))
    reference = SCORES["reference_logprobs"]
    collection = Collection(5, problem_set(), config(prompts=6, oversample=1), [reference, AUDIT])
    assert collection.makes(AUDIT)

    def round_of(makers: list[Offer], reward: float) -> list[range]:
        (leases,) = [list(each) for each in rounds(makers, reward)]
        return [lease.groups for lease in leases]

    def rounds(makers: list[Offer], reward: float) -> Iterator[list[Lease]]:
        for leases in collection.draws():
            yield leases
            for lease, maker in zip(leases, makers, strict=True):
                collection.arrive(lease, *whole(rollouts(lease, 2), maker))
                assert [one.by for one in collection.slices(lease)] == [maker]
                _, arrived = next(collection.arrivals())
                rewards = np.array([[reward, 0.25]] * len(lease.groups), np.float32)
                collection.judged(lease, arrived, Judgement(rewards, (("near", "far"),) * len(lease.groups)))
                collection.scored(lease, reference, np.full((len(lease.groups), 2, 3), reward, np.float32))
        collection.abandon()  # as the verifying side does at its end

    assert round_of([bad, good], 0.5) == [range(3), range(3, 6)]
    assert not collection.reopen(lambda _: False)
    assert collection.reopen(lambda maker: maker == bad)
    assert round_of([good], 0.75) == [range(3)]
    assert not collection.reopen(lambda maker: maker == bad)
    found = collection.collected()
    assert groups(found) == list(range(6))
    assert found.batch.rewards[:, 0].tolist() == [0.75] * 3 + [0.5] * 3
    assert found.batch.reference_logprobs is not None
    assert found.batch.reference_logprobs[:, 0, 0].tolist() == [0.75] * 3 + [0.5] * 3
    assert {row["worker"] for row in found.rows()} == {"good"}
    assert found.figures()["audit/redrawn"] == 3

    second = collection._made[0].lease
    collection.found_wrong(second)  # by an audit, though its worker is trusted
    assert collection.reopen(lambda _: False)
    assert round_of([good], 0.875) == [second.groups]
    assert collection.collected().batch.rewards[:, 0].tolist() == [0.875] * 3 + [0.5] * 3
