"""Weights that are swapped between two tokens: what was drawn stays, and each token is of the version that drew it."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from rl.config import SamplingConfig
from rl.model.policy import Policy
from rl.records import Problem
from rl.sampling.engine import Engine, Hooks, no_swap
from rl.sampling.sampler import sample, uniforms
from rl.sampling.scheduling import Draw
from rl.sampling.slots import Slots
from rl.sampling.strides import STRIDE
from tests.rl.sampling.test_engine import check_same
from tests.rl.sampling.test_sampler import ARCHITECTURES

Make = Callable[..., Policy]
LIMIT = 12
PROMPTS = ([7], [5, 9, 17], [20, 31, 8, 5, 44])
KEPT = 64  # kv_versions


def weights_of(policy: Policy) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in policy.weights().items()}


class Swaps:
    """In place of a worker: before the n-th step it writes these weights, and says their version."""

    def __init__(self, policy: Policy, by_step: Mapping[int, tuple[int, Mapping[str, Tensor]]]) -> None:
        self.policy, self.by_step, self.steps = policy, by_step, -1

    def __call__(self) -> int | None:
        self.steps += 1
        if self.steps not in self.by_step:
            return None
        version, weights = self.by_step[self.steps]
        self.policy.load_weights(weights)
        return version


def drawn(
    policy: Policy, swaps: Swaps | None = None, kv_versions: int = KEPT, *, share: bool = True, **given: Any
) -> list[Draw]:
    """Four completions of each prompt."""
    noise = uniforms(0, 0, range(len(PROMPTS)), 4, LIMIT)
    slots = Slots(policy, **given)
    slots.backend.share = share
    engine = Engine(policy, slots, ends=policy.ends, version=3)
    draws = [engine.add(PROMPTS[row // 4], LIMIT, one) for row, one in enumerate(noise)]
    engine.run(Hooks(fresh=swaps or no_swap, kv_versions=kv_versions))
    return draws


@pytest.fixture(params=ARCHITECTURES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.mark.parametrize("strides", [False, True])
def test_a_swap_to_the_same_weights_changes_no_bit(strides: bool, name: str, make_policy: Make) -> None:
    policy = make_policy(name, eager=3.0)
    expected = drawn(policy, strides=strides)
    swaps = Swaps(policy, {1: (4, weights_of(policy)), 2: (6, weights_of(policy))})
    found = drawn(policy, swaps, strides=strides)
    assert max(len(draw.tokens) for draw in found) > 4
    at, first = (1 + STRIDE, 1) if strides else (2, 1)
    for one, other in zip(found, expected, strict=True):
        assert one.tokens.tobytes() == other.tokens.tobytes()
        assert one.logprobs.tobytes() == other.logprobs.tobytes()
        assert one.versions.dtype == np.int32
        assert one.versions.tolist() == [3 if t < first else 4 if t < at else 6 for t in range(len(one.tokens))]
        assert set(other.versions) == {3}


def test_a_new_version_of_weights_that_nobody_has_written_to_changes_no_bit_either(make_policy: Make) -> None:
    """Keys and values are of these weights, however old they are."""
    policy = make_policy(eager=3.0)
    expected = drawn(policy)
    elsewhere = Policy(deepcopy(policy.model), policy.tokenizer, policy.device, policy.dtype)
    found = drawn(policy, Swaps(elsewhere, {2: (9, weights_of(policy))}), kv_versions=0)
    for one, other in zip(found, expected, strict=True):
        assert one.tokens.tobytes() == other.tokens.tobytes()
        assert one.logprobs.tobytes() == other.logprobs.tobytes()
    assert {9} < {version for draw in found for version in draw.versions.tolist()}


@pytest.mark.parametrize("share", [True, False])
def test_log_probs_are_those_of_the_weights_that_drew_each_token(
    share: bool,
    name: str,
    make_policy: Make,
    exactly: Callable[[PreTrainedModel], PreTrainedModel],
    alone: Callable[..., Tensor],
) -> None:
    """Keys and values recomputed: as if the tokens so far had been given to the new weights."""
    policy, other = make_policy(name, seed=0, eager=3.0), make_policy(name, seed=1, eager=3.0)
    old, new = exactly(policy.model), exactly(other.model)
    without = drawn(policy, share=share)
    draws = drawn(policy, Swaps(policy, {4: (4, weights_of(other))}), kv_versions=0, share=share)
    for draw, before in zip(draws, without, strict=True):
        assert draw.tokens[:4].tobytes() == before.tokens[:4].tobytes()
        assert draw.logprobs[:4].tobytes() == before.logprobs[:4].tobytes()
        with torch.no_grad():
            by_old, by_new = (alone(model, draw.prompt, draw.tokens).numpy() for model in (old, new))
        np.testing.assert_allclose(draw.logprobs, np.where(draw.versions == 3, by_old, by_new), atol=1e-5)
    going = [(draw, before) for draw, before in zip(draws, without, strict=True) if len(before.tokens) > 4]
    assert len(going) > 3
    assert any(draw.tokens.tolist() != before.tokens.tolist() for draw, before in going)
    fresh = Engine(other, Slots(other), ends=other.ends)
    expected = []
    for _, before in going:
        expected.append(Draw(before.prompt, LIMIT, before.noise, before.tokens[:4], before.logprobs[:4]))
        fresh.go_on(expected[-1])
    while fresh.busy:
        fresh.step()
    check_same([draw for draw, _ in going], expected)


def behind(old: PreTrainedModel, new: PreTrainedModel, ids: Sequence[int], at: int) -> Tensor:
    """[len(ids) - at] log-probs of the tokens from `at` on by `new`, which has the keys of `old` for all before the one
    before them."""
    row = torch.tensor([list(ids)])
    cache = DynamicCache()
    old(input_ids=row[:, : at - 1], past_key_values=cache, use_cache=True)
    logits = new(input_ids=row[:, at - 1 : -1], past_key_values=cache, use_cache=True).logits[0]
    return logits.log_softmax(-1).gather(1, row[0, at:, None]).squeeze(1)


def test_kept_keys_are_those_of_the_old_weights(
    name: str, make_policy: Make, exactly: Callable[[PreTrainedModel], PreTrainedModel]
) -> None:
    policy, other = make_policy(name, seed=0), make_policy(name, seed=1)
    old, new = exactly(policy.model), exactly(other.model)
    found = drawn(policy, Swaps(policy, {4: (4, weights_of(other))}), kv_versions=1)
    going = [draw for draw in found if len(draw.tokens) > 4]
    assert len(going) > 3
    for draw in going:
        assert draw.versions.tolist() == [3] * 4 + [4] * (len(draw.tokens) - 4)
        with torch.no_grad():
            expected = behind(old, new, [*draw.prompt, *draw.tokens], len(draw.prompt) + 4)
        np.testing.assert_allclose(draw.logprobs[4:], expected, atol=1e-5)


def test_of_several_swaps_between_two_tokens_the_last_counts(make_policy: Make) -> None:
    policy = make_policy()
    engine = Engine(policy, version=2)
    draw = engine.add([5, 9], 3, None)
    engine.step()
    for version in (3, 5):
        policy.load_weights(weights_of(policy))
        engine.swapped(version, KEPT)
    engine.step()
    (back,) = engine.take_back()
    engine.go_on(back)
    engine.step()
    assert draw.over
    assert draw.versions.tolist() == [2, 5, 5]
    assert len(draw.stretches) == 3


def test_rollouts_have_the_version_of_each_token(make_policy: Make, problems: list[Problem]) -> None:
    policy = make_policy(eager=3.0)
    swaps = Swaps(policy, {2: (5, weights_of(policy))})
    hooks, config = Hooks(fresh=swaps), SamplingConfig(max_tokens=8)
    found = sample(policy, 4, problems, config, samples=4, seed=0, step=5, groups=range(3), hooks=hooks)
    inside = np.arange(found.tokens.shape[2]) < found.lengths[..., None]
    expected = np.where(np.arange(found.tokens.shape[2]) < 2, 4, 5) * inside
    assert found.versions.tolist() == expected.tolist()
    assert len(set(found.lengths.ravel().tolist())) > 2


def test_whatever_happens_versions_are_those_at_which_tokens_were_drawn(make_policy: Make) -> None:
    policy = make_policy(eager=3.0)
    made = weights_of(policy)
    kinds = [Slots(policy, strides=strides) for strides in (False, True)]

    @settings(max_examples=12, deadline=None)
    @given(
        swaps=st.dictionaries(st.integers(0, 30), st.tuples(st.integers(1, 3), st.booleans()), max_size=8),
        most=st.none() | st.integers(1, 6),
        kv_versions=st.integers(0, 4),
        slots=st.sampled_from(kinds),
        back=st.none() | st.integers(1, 20),
    )
    def check(
        swaps: dict[int, tuple[int, bool]], most: int | None, kv_versions: int, slots: Slots, back: int | None
    ) -> None:
        slots._most = most
        version = 2
        engine = Engine(policy, slots, ends=policy.ends, version=version)
        noise = uniforms(0, 0, range(len(PROMPTS)), 2, LIMIT)
        draws = [engine.add(PROMPTS[row // 2], LIMIT, noise[row]) for row in range(len(noise))]
        expected: list[list[int]] = [[] for _ in draws]
        step = 0
        while engine.busy:
            if step in swaps:
                more, written = swaps[step]
                version += more
                if written:
                    policy.load_weights(made)
                engine.swapped(version, kv_versions)
            engine.step()
            step += 1
            counts = [] if engine._rows is None else engine._rows.counts
            running = dict(zip(map(id, engine.schedule.rows), counts, strict=True))
            for draw, seen in zip(draws, expected, strict=True):
                seen += [version] * (running.get(id(draw), len(draw.tokens)) - len(seen))
            if step == back:
                for draw in engine.take_back():
                    engine.go_on(draw)
        for draw, seen in zip(draws, expected, strict=True):
            assert draw.versions.tolist() == seen == sorted(seen)
            assert draw.over

    check()
