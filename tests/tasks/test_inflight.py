"""A lease goes on with the weights that its trainer publishes meanwhile."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from flows.config import TrainConfig
from infra.cluster.resident import drop, resident_now
from infra.storage.fence import Fence
from infra.weights.mirror import Mirror, Prefetched
from infra.weights.version import PolicyVersion
from rl.environments.interface import Interface
from rl.model.policy import Policy
from rl.records import Problem, Rollouts
from rl.sampling import sampler
from rl.sampling.prefix_cache import PrefixCache
from rl.sampling.sampler import sample
from tasks.calls import generator
from tasks.calls.generator import prefetch
from tasks.calls.inflight import Inflight, InflightConfig, Sampler, Swaps
from tests.tasks.test_generator import SPEC, published

SESSION, OTHER = Fence("run", 7), Fence("run", 8)
FLYING = replace(SPEC, inflight=Inflight(SESSION, 0))
PROBLEM = Problem("add 1 and 2", "1 + 2", "here:1", played=True)
AT = 4  # tokens of each completion when a version comes


@pytest.fixture(autouse=True)
def _nothing_resident() -> Iterator[None]:
    yield
    for name in ("sampler", "mirror"):
        drop(name)


@pytest.fixture
def versions(tmp_path: Path) -> list[PolicyVersion]:
    """Two of a run, each whole."""
    return [published(tmp_path / "run", step) for step in (0, 1)]


@pytest.fixture
def arrives(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Have a version come when each completion has AT tokens, as if the flow had told of it and it had been fetched."""

    def arrive(version: PolicyVersion, session: Fence = SESSION) -> None:
        looks = 0

        def check() -> None:
            nonlocal looks
            looks += 1
            if looks == AT + 1:
                prefetch(version, session)
                for thread in threading.enumerate():
                    if thread.name == "weights":
                        thread.join(60)

        monkeypatch.setattr(generator, "cancellation_check", lambda: check)

    return arrive


def generate(version: PolicyVersion, step: int = 1, spec: generator.Generator = FLYING) -> Rollouts:
    return spec.generate(version, step, [0], [PROBLEM])


def seen(rollouts: Rollouts) -> list[int]:
    """The version of each token of the first completion."""
    return rollouts.versions[0, 0, : rollouts.lengths[0, 0]].tolist()


def here() -> Mirror:
    mirror = resident_now("mirror")
    assert isinstance(mirror, Mirror)
    return mirror


def test_a_version_that_comes_in_a_lease_draws_the_rest_of_it(
    versions: list[PolicyVersion], arrives: Callable[..., None]
) -> None:
    old, new = versions
    before = generate(old)
    arrives(new)
    found = generate(old)
    assert seen(found) == [0] * AT + [1] * (len(seen(found)) - AT)
    assert len(seen(found)) > AT
    assert np.array_equal(found.tokens[..., :AT], before.tokens[..., :AT])
    assert np.array_equal(found.logprobs[..., :AT], before.logprobs[..., :AT])
    assert not np.array_equal(found.tokens, before.tokens)
    # and a lease that was handed out before it came does not go back
    arrives(new)
    assert set(seen(generate(old))) == {1}
    assert here()._version == new.id
    # but one of the step before may not have it
    assert set(seen(generate(old, step=0))) == {0}


@pytest.mark.parametrize(
    ("step", "session", "spec"),
    [(0, SESSION, FLYING), (1, OTHER, FLYING), (1, SESSION, SPEC)],
    ids=["of a later step", "of another session of the trainer", "off"],
)
def test_what_a_lease_may_not_have_changes_no_bit_of_it(
    step: int,
    session: Fence,
    spec: generator.Generator,
    versions: list[PolicyVersion],
    arrives: Callable[..., None],
) -> None:
    old, new = versions
    before = generate(old, step)
    arrives(new, session)
    found = generate(old, step, spec)
    assert here().prefetched == Prefetched(new, session)
    assert set(seen(found)) == {0}
    for name in ("tokens", "logprobs", "versions"):
        assert np.array_equal(getattr(found, name), getattr(before, name))


def test_the_same_weights_under_a_new_version_change_no_bit(tmp_path: Path, arrives: Callable[..., None]) -> None:
    """As after an update that was refused."""
    old, same = (published(tmp_path / "run", step, seed=0) for step in (0, 1))
    assert same.digest == old.digest
    before = generate(old)
    arrives(same)
    found = generate(old)
    assert seen(found) == [0] * AT + [1] * (len(seen(found)) - AT)
    assert len(seen(found)) > AT
    assert np.array_equal(found.tokens, before.tokens)
    assert np.array_equal(found.logprobs, before.logprobs)


def test_keys_are_kept_from_turn_to_turn_where_no_bit_is_promised(
    versions: list[PolicyVersion], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = []

    def spy(*args: Any, kept: PrefixCache | None, **options: Any) -> Rollouts:
        given.append(kept)
        return sample(*args, **options)

    monkeypatch.setattr(sampler, "sample", spy)
    turns = {"interface": Interface(step=True)}
    for spec in (SPEC, FLYING, replace(SPEC, **turns), replace(FLYING, **turns, greedy=True)):
        generate(versions[1], spec=spec)
    assert given == [None] * 4
    for _ in range(2):
        generate(versions[1], spec=replace(FLYING, **turns))
    assert isinstance(given[-1], PrefixCache)
    assert given[-1] is given[-2]


def test_a_swap_that_fails_in_the_middle_leaves_no_mixture(
    versions: list[PolicyVersion], arrives: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = versions
    before = generate(old)
    arrives(new)

    def half(policy: Policy, _: Any) -> None:
        with torch.no_grad():
            next(policy.model.parameters()).zero_()
        raise RuntimeError("a device that is gone")

    with monkeypatch.context() as patch:
        patch.setattr(Policy, "load_weights", half)
        with pytest.raises(RuntimeError, match="a device that is gone"):
            generate(old)
    assert resident_now("sampler") is None
    arrives(old)
    assert np.array_equal(generate(old, spec=SPEC).tokens, before.tokens)


def test_weights_that_do_not_fit_are_left_alone(
    versions: list[PolicyVersion], arrives: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = versions
    before = generate(old)
    arrives(new)
    load = Policy.load_weights
    monkeypatch.setattr(
        Policy, "load_weights", lambda policy, weights: load(policy, {**weights, "more": torch.ones(1)})
    )
    found = generate(old)
    assert set(seen(found)) == {0}
    assert np.array_equal(found.logprobs, before.logprobs)


class Loaded:
    """In place of a policy: the version in it."""

    def __init__(self, step: int) -> None:
        self.step = step

    def load_weights(self, weights: Any) -> None:
        self.step = int(weights["step"])


@settings(max_examples=100, deadline=None)
@given(
    floor=st.integers(0, 8),
    ahead=st.integers(0, 4),
    at=st.integers(0, 12),
    of=st.sampled_from([SESSION, OTHER, None]),
    coming=st.lists(
        st.tuples(st.integers(0, 14), st.sampled_from([SESSION, OTHER]), st.booleans(), st.booleans()), max_size=12
    ),
)
def test_no_token_is_of_a_version_outside_its_lease_and_none_goes_back(
    floor: int, ahead: int, at: int, of: Fence | None, coming: list[tuple[int, Fence, bool, bool]]
) -> None:
    def version(step: int, session: Fence) -> PolicyVersion:
        return PolicyVersion(step, f"v{step}", f"{session.epoch}/{step}")

    mirror, step = Mirror("weights", patience=0), floor + ahead
    swaps = Swaps(Inflight(SESSION, 1), mirror, step)
    policy: Any = Loaded(at)
    sampler = Sampler(policy, None, version(at, of or OTHER), None, of)  # type: ignore[arg-type]
    first = swaps.newest(version(floor, SESSION))
    if not swaps.passed(sampler, first):
        sampler.load({"step": torch.tensor(first.step)}, first)
    sampler.session = SESSION
    drawn = [sampler.version.step]
    assert drawn[0] == (at if of == SESSION and floor < at <= step else floor)  # it goes back for another session alone
    assert sampler.version == version(drawn[0], SESSION)
    for new, session, gone, busy in coming:
        made = version(new, session)
        mirror.prefetched, mirror._version = Prefetched(made, session), None if gone else made.id
        mirror._weights = {"step": torch.tensor(new)}
        before = sampler.version
        with held_elsewhere(mirror) if busy else nullcontext():
            found = swaps.into(sampler)
        taken = session == SESSION and before.step < new <= step and not gone and not busy
        assert found == (new if taken else None)
        assert sampler.version == (made if taken else before)
        assert policy.step == sampler.version.step
        drawn.append(sampler.version.step)
    assert drawn == sorted(drawn)
    assert drawn[-1] <= step


@contextmanager
def held_elsewhere(mirror: Mirror) -> Iterator[None]:
    """Another thread has the mirror meanwhile."""
    has, done = threading.Event(), threading.Event()

    def hold() -> None:
        with mirror._lock:
            has.set()
            assert done.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert has.wait(60)
    yield
    done.set()
    thread.join(60)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        ({"staleness": 0, "inflight": {"weights": True}}, "inflight.weights: at staleness 0 all tokens of a batch are"),
        (
            {"inflight": {"weights": True}, "policy": {"engine": "http://127.0.0.1:8000"}},
            r"inflight.weights: a server \(policy.engine\) is given weights between leases",
        ),
    ],
)
def test_what_cannot_be_is_refused(config: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        TrainConfig.model_validate(config)


def test_it_is_off_at_staleness_0_and_with_a_server() -> None:
    server = "http://127.0.0.1:8000"
    assert [InflightConfig().in_use(staleness, "rlvf") for staleness in (0, 1, 4)] == [False, True, True]
    assert not InflightConfig(weights=False).in_use(4, "rlvf")
    assert not InflightConfig().in_use(4, server)
    TrainConfig.model_validate({"staleness": 0})
