"""Leases that are cut, and joined before."""

import numpy as np
import pytest

from infra.dispatch.shares import Sizes
from infra.weights.version import PolicyVersion
from rl.config import PolicyConfig, SamplingConfig
from rl.records import Problem, Rollouts
from tasks.batch.lease import Lease, neighbours_joined
from tasks.batch.slices import Slices
from tasks.calls.generator import Generator
from tests.tasks.batch.test_slices import WORKERS

GENERATOR = Generator(PolicyConfig(), SamplingConfig(max_tokens=4), samples=2, seed=0, slice_seconds=1.0)
PROBLEMS = tuple(Problem(f"{at}?", str(at), f"t:{at}") for at in range(9))


def lease(start: int, stop: int) -> Lease:
    return Lease(range(start, stop), PROBLEMS[start:stop])


def test_leases_that_follow_on_one_another_are_joined_and_cut_as_they_were() -> None:
    assert neighbours_joined([lease(0, 2), lease(2, 4), lease(5, 6), lease(6, 9)]) == [lease(0, 4), lease(5, 9)]
    assert neighbours_joined([]) == []
    assert lease(5, 9).cut(1) == (lease(5, 6), lease(6, 9))


def test_a_lease_is_cut_until_somebody_has_begun_it() -> None:
    leases = [lease(0, 9)]
    newest = PolicyVersion(3, "v3", "")
    slices = Slices(GENERATOR, 3, leases, range(3, 4), 100, lambda _: newest, Sizes(4, 30.0))
    assert slices.cut(0, 2) == 1
    assert slices.cut(1, 3) == 2
    assert leases == [lease(0, 2), lease(2, 5), lease(5, 9)]
    assert [slices.units(index) for index in range(3)] == [2, 3, 4]
    assert slices.arguments(1) == (newest, 3, range(2, 5), PROBLEMS[2:5], None)
    made = Rollouts.padded(
        PROBLEMS[:2], [[1], [1]], [[3], [3, 4], [3, 4, 5], [3, 4, 5]], version=3, ended=[True, True, False, False]
    )
    assert slices.check(0, made) == ""
    assert slices.made(0, made).steps == 3
    assert slices.made(0, made).tokens == 9
    assert slices.sizes(0) == Sizes(4, 30.0)
    assert not slices.take(0, made, WORKERS[0])
    assert slices.sizes(0) is None
    with pytest.raises(AssertionError):
        slices.cut(0, 1)
    so_far = slices.arguments(0)[4]
    assert so_far is not None
    assert [None if each is None else len(each) for each in so_far.tokens] == [None, None, 3, 3]
    assert slices.sizes(1) == Sizes(4, 30.0)
    assert np.array_equal(so_far.prompts[0], [1])
