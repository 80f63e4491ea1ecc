"""Leases in slices by whoever is free: no token is older than the one before it, or than its batch may be."""

from dataclasses import replace
from pathlib import Path
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from flows.config import TrainConfig
from infra.cluster.placement import Offer
from infra.cluster.resident import drop
from infra.weights.version import PolicyVersion
from rl.config import PolicyConfig, SamplingConfig
from rl.records import Maker, Problem, Rollouts
from tasks.batch.batch_config import SLICE_SECONDS, BatchConfig
from tasks.batch.lease import Lease, Slice, moved
from tasks.batch.slices import Slices
from tasks.calls.generator import Generator
from tests.tasks.test_generator import SPEC, published

LIMIT, SAMPLES = 6, 2
GENERATOR = Generator(PolicyConfig(), SamplingConfig(max_tokens=LIMIT), samples=SAMPLES, seed=0, slice_seconds=1.0)
WORKERS = [Offer(f"tcp://{name}", name, {}) for name in "abc"]
LEASE = Lease(range(4, 6), (Problem("one", "1", "t:1"), Problem("two", "2", "t:2")))


class Run:
    """A trainer that publishes, and generators that may swap what it has published into their weights."""

    def __init__(self, step: int, staleness: int, newest: int) -> None:
        self.step, self.oldest, self.published = step, max(0, step - staleness), newest
        versions = range(self.oldest, step + 1)
        self.slices = Slices(GENERATOR, step, [LEASE], versions, 100, self.newest)

    def newest(self, at_least: int) -> PolicyVersion:
        self.published = max(self.published, at_least)  # it is waited for
        return PolicyVersion(self.published, f"v{self.published}", "")

    def publish(self) -> None:
        self.published = min(self.published + 1, self.step)  # what comes later is made of this very batch


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 2**32 - 1), st.integers(0, 6), st.integers(0, 3))
def test_whatever_is_published_and_swapped_meanwhile_no_token_is_older_than_the_batch_may_be_or_than_the_one_before_it(
    seed: int, step: int, staleness: int
) -> None:
    draws = Random(seed)
    run = Run(step, staleness, draws.randint(max(0, step - staleness), step))
    expected: list[list[int]] = [[], [], [], []]
    expected_versions: list[list[int]] = [[], [], [], []]
    over, by, slices = [False] * 4, [set[str]() for _ in range(4)], 0
    while not all(over):
        if draws.random() < 0.4:
            run.publish()
        version, _, groups, problems, so_far = run.slices.arguments(0)
        assert (list(groups), problems) == ([4, 5], LEASE.problems)
        given_tokens = [[]] * 4 if so_far is None else [None if t is None else t.tolist() for t in so_far.tokens]
        assert given_tokens == [
            None if done and so_far else tokens for done, tokens in zip(over, expected, strict=True)
        ]
        worker = draws.choice(WORKERS)
        counts = [0 if done else draws.randint(0, LIMIT - len(t)) for done, t in zip(over, expected, strict=True)]
        if not any(counts):
            counts[over.index(False)] = 1
        at, drawn = version.step, [list[int]() for _ in range(4)]
        for token in range(max(counts)):
            if draws.random() < 0.4 and at < run.step:  # it has a newer one meanwhile
                run.publish()
                at = max(at, run.published)
            for row in range(4):
                if token < counts[row]:
                    drawn[row].append(at)
        tokens = [[len(before) + t for t in range(count)] for before, count in zip(expected, counts, strict=True)]
        ended = [count > 0 and draws.random() < 0.4 for count in counts]
        part = Rollouts.padded(
            LEASE.problems,
            [[7], [8]],
            tokens,
            logprobs=[[-0.5] * count for count in counts],
            versions=drawn,
            ended=ended,
        )
        assert run.slices.check(0, part) == ""
        last = [seen[-1] for seen, done in zip(expected_versions, over, strict=True) if seen and not done]
        if last and version.step == max(last):
            older = replace(part, versions=np.where(part.inside, version.step - 1, 0).astype(np.int32))
            assert run.slices.check(0, older).startswith(f"a token was sampled with v{version.step - 1}, not with")
        for row in range(4):
            expected[row] += tokens[row]
            expected_versions[row] += drawn[row]
            over[row] = over[row] or ended[row] or len(expected[row]) == LIMIT
            by[row] |= {worker.name} if counts[row] else set()
        slices += 1
        assert run.slices.take(0, part, worker) == all(over)
    rollouts, made = run.slices.whole(0)
    assert len(made) == slices
    for row, (tokens, versions) in enumerate(zip(expected, expected_versions, strict=True)):
        p, g = divmod(row, SAMPLES)
        n = rollouts.lengths[p, g]
        assert rollouts.tokens[p, g, :n].tolist() == tokens
        found = rollouts.versions[p, g, :n].tolist()
        assert found == versions == sorted(versions)
        assert run.step - staleness <= found[0]
        assert found[-1] <= run.step
    assert moved(made) == sum(len(names) > 1 for names in by)
    assert sum(int((one.end - one.start).sum()) for one in made) == rollouts.generated_tokens
    assert {name for maker in rollouts.makers for name in maker.worker.split(", ")} == set[str]().union(*by)


def test_generators_that_take_turns_at_a_lease_make_what_one_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl.slices.SHARE", 1e9)
    version = published(tmp_path / "run", 3)
    one = replace(SPEC, slice_seconds=1e-6)
    slices = Slices(one, 3, [LEASE], range(3, 4), 10**6, lambda _: version)
    done, count = False, 0
    while not done:
        part = one.generate(*slices.arguments(0))
        assert slices.check(0, part) == ""
        done = slices.take(0, part, WORKERS[count % 2])
        count += 1
        for name in ("sampler", "mirror") if count < 3 else ():
            drop(name)  # the next one is another worker
    found, made = slices.whole(0)
    whole = SPEC.generate(version, 3, LEASE.groups, LEASE.problems)
    for name in ("sampler", "mirror"):
        drop(name)
    assert len(made) == count == whole.lengths.max()  # a token each
    np.testing.assert_array_equal(found.tokens, whole.tokens)
    np.testing.assert_array_equal(found.versions, whole.versions)
    np.testing.assert_allclose(found.logprobs, whole.logprobs, atol=1e-5)
    assert (found.texts, found.ended.tolist()) == (whole.texts, whole.ended.tolist())
    assert found.makers == (Maker("a, b", "float32"),) * 2


def test_a_slice_begins_with_the_versions_of_those_that_go_on() -> None:
    run = Run(step=5, staleness=3, newest=2)
    run.slices.arguments(0)
    part = Rollouts.padded(
        LEASE.problems,
        [[7], [8]],
        [[1], [1], [1], [1]],
        versions=[[5], [4], [2], [3]],
        ended=[True, False, True, False],
    )
    assert not run.slices.take(0, replace(part, makers=(Maker(dtype="float32"),) * 2), WORKERS[0])
    assert run.slices.arguments(0)[0].step == 4  # which is waited for; the one of v5 is over
    part = Rollouts.padded(LEASE.problems, [[7], [8]], [[], [2], [], [2]], version=3, ended=[False, True, False, True])
    assert run.slices.check(0, part) == "a token was sampled with v3, not with v4 to v4"


def test_the_version_of_an_observation_holds_nobody_up() -> None:
    run = Run(2, 2, 1)
    flags = [[True, False], [True, False], [True], [True]]
    part = Rollouts.padded(
        LEASE.problems, [[7], [8]], [[1, 2], [1, 2], [1], [1]], version=1, trained=flags, ended=False
    )
    part.versions[0, :, 1] = 99
    assert run.slices.take(0, part, WORKERS[0]) is False
    assert run.slices.arguments(0)[0].step == 1
    assert run.slices.made(0, part).tokens == 4


def test_a_lease_that_is_not_sliced_is_whole_or_refused() -> None:
    whole = Slices(
        replace(GENERATOR, slice_seconds=None), 5, [LEASE], range(4, 6), 100, lambda _: PolicyVersion(5, "v5", "")
    )
    part = Rollouts.padded(LEASE.problems, [[7], [8]], [[1], [1], [1], [1]], version=5, ended=[True, True, True, False])
    assert whole.check(0, part) == "a completion is not over, and has not 6 tokens"
    assert whole.check(0, replace(part, ended=np.ones((2, 2), np.bool_))) == ""


def test_completions_that_two_workers_drew_have_moved() -> None:
    def one(worker: int, start: list[int], end: list[int]) -> Slice:
        return Slice(WORKERS[worker], Maker(), np.array([start], np.int32), np.array([end], np.int32))

    assert moved([]) == 0
    assert moved([one(0, [0, 0], [3, 2])]) == 0
    assert moved([one(0, [0, 0], [3, 2]), one(0, [3, 2], [5, 4])]) == 0
    assert moved([one(0, [0, 0], [3, 2]), one(1, [3, 2], [3, 4])]) == 1
    assert moved([one(0, [0, 0], [3, 2]), one(1, [3, 2], [3, 4]), one(2, [3, 4], [9, 4])]) == 2


@pytest.mark.parametrize(
    ("seconds", "staleness", "engine", "found"),
    [
        (None, 1, "rlvf", SLICE_SECONDS),
        (None, 0, "rlvf", None),  # bit for bit
        (None, 1, "http://127.0.0.1:8000", None),
        (5.0, 0, "rlvf", 5.0),
        (0.0, 1, "rlvf", None),
        (0.0, 1, "http://127.0.0.1:8000", None),
    ],
)
def test_slices_are_in_use_where_generation_runs_ahead_or_they_are_asked_for(
    seconds: float | None, staleness: int, engine: str, found: float | None
) -> None:
    assert BatchConfig(slice_seconds=seconds).slices(staleness, engine) == found


def test_a_server_is_not_asked_for_slices() -> None:
    given = {"batch": {"slice_seconds": 5}, "policy": {"engine": "http://127.0.0.1:8000"}}
    with pytest.raises(ValidationError, match=r"batch\.slice_seconds: a server \(policy\.engine\) is asked for whole"):
        TrainConfig.model_validate(given)
