"""The state of AdamW in 8 bits, and what it needs."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from rl.learning.learner import Learner
from rl.learning.optimizer_config import OptimizerConfig
from rl.records import Batch, Problem
from rl.sampling.engine import Engine
from rl.sampling.slots import Slots
from tests.rl.updates import PLAIN, REINFORCE, Make, identical, moments, weights

Drawn = Callable[..., Batch]
EIGHT_BIT = PLAIN.model_copy(update={"state": "8bit"})
needs_bitsandbytes = pytest.mark.skipif(
    importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed: pip install bitsandbytes"
)


@pytest.fixture
def of_small_tensors(monkeypatch: pytest.MonkeyPatch) -> None:
    """The matrices of the tests' models have fewer numbers than those whose state gets 8 bits."""
    monkeypatch.setattr("rl.learning.optimizers.EIGHT_BIT_FROM", 256)


@needs_bitsandbytes
@pytest.mark.usefixtures("of_small_tensors")
def test_the_state_of_matrices_has_eight_bits_and_that_of_embeddings_all(make_policy: Make, drawn: Drawn) -> None:
    learner = Learner(make_policy(), EIGHT_BIT)
    expected = learner.standing - sum(p.nbytes for p in learner.parameters)
    learner.update(drawn(learner.policy), REINFORCE, 1.0)
    tables = {id(m.weight) for m in learner.policy.model.modules() if isinstance(m, nn.Embedding)}
    kinds = {True: set(), False: set()}
    taken = 0
    for parameter in learner.parameters:
        state = learner.optimizer_of(parameter).state[parameter]
        large = [value for value in state.values() if torch.is_tensor(value) and value.shape == parameter.shape]
        assert len(large) == 2
        kinds[parameter.ndim == 2 and id(parameter) not in tables].update(value.dtype for value in large)
        taken += sum(value.nbytes for value in large)
    assert kinds == {True: {torch.uint8}, False: {torch.float32}}
    assert taken == expected


@needs_bitsandbytes
@pytest.mark.usefixtures("of_small_tensors")
def test_it_moves_the_weights_as_adamw_does(make_policy: Make, drawn: Drawn) -> None:
    learners = [Learner(make_policy(), config) for config in (PLAIN, EIGHT_BIT)]
    before = torch.cat([p.detach().flatten() for p in learners[0].parameters])
    batch = drawn(learners[0].policy)
    for _ in range(5):
        for learner in learners:
            learner.update(batch, REINFORCE, 1.0)
    exact, rounded = (torch.cat([p.detach().flatten() for p in one.parameters]) - before for one in learners)
    assert not torch.equal(exact, rounded)
    assert float(torch.cosine_similarity(exact, rounded, 0)) > 0.98
    assert float(rounded.norm() / exact.norm()) == pytest.approx(1, abs=0.05)


@needs_bitsandbytes
@pytest.mark.usefixtures("of_small_tensors")
def test_it_goes_on_bit_for_bit(make_policy: Make, drawn: Drawn, tmp_path: Path) -> None:
    learner = Learner(make_policy(), EIGHT_BIT)
    batch = drawn(learner.policy)
    learner.update(batch, REINFORCE, 1.0)
    learner.save(tmp_path)
    other = Learner(make_policy(seed=1), EIGHT_BIT)
    other.restore(tmp_path)
    for one in (learner, other):
        one.update(batch, REINFORCE, 1.0)
    assert identical(weights(learner), weights(other))
    assert identical(moments(learner), moments(other))


@pytest.mark.usefixtures("of_small_tensors")
@pytest.mark.parametrize(
    "config",
    [PLAIN, OptimizerConfig(name="muon", lr=1e-3, warmup_steps=0), pytest.param(EIGHT_BIT, marks=needs_bitsandbytes)],
    ids=["adamw", "muon", "8bit"],
)
def test_sampling_sees_the_weights_that_it_moved(
    config: OptimizerConfig, make_policy: Make, drawn: Drawn, problems: list[Problem]
) -> None:
    """With the slots that were kept, and in the middle of a completion."""
    policy = make_policy()
    learner, kept, engine = Learner(policy, config), Slots(policy), Engine(policy)
    assert kept.backend.lean is not None
    prompt = policy.prompt_tokens(problems[0].prompt)
    engine.add(prompt, 9)
    engine.step()
    learner.update(drawn(policy), REINFORCE, 1.0)
    late = engine.add(prompt, 4)  # behind a prompt whose keys were kept
    engine.run()
    draws = [late]
    for slots in (kept, Slots(policy)):
        engine = Engine(policy, slots)
        draws.append(engine.add(prompt, 4))
        engine.run()
    *found, expected = draws
    for draw in found:
        np.testing.assert_array_equal(draw.tokens, expected.tokens)
        np.testing.assert_allclose(draw.logprobs, expected.logprobs, atol=1e-5, rtol=0)


def test_without_its_package_it_is_refused_before_a_model_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ValueError, match=r"optimizer.state 8bit: needs bitsandbytes; pip install bitsandbytes"):
        EIGHT_BIT.check_installed()
    PLAIN.check_installed()


def test_muon_has_no_such_state() -> None:
    with pytest.raises(ValueError, match="state: 8bit is for adamw; name is muon"):
        OptimizerConfig(name="muon", state="8bit")
