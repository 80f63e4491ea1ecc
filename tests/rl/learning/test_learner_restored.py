"""A learner that is saved and goes on."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.learner import Learner
from rl.learning.optimizer_config import OptimizerConfig
from rl.records import Batch
from tests.rl.updates import PLAIN, REINFORCE, Make, identical, judged, moments, weights

pytestmark = pytest.mark.slow

CONTINUE = """
import pickle, sys
from pathlib import Path
import torch
from rl.learning.algorithm_config import AlgorithmSpec
from rl.config import PolicyConfig
from rl.learning.optimizer_config import OptimizerConfig
from rl.learning.learner import Learner
from rl.loading.policy import load_policy
saved, batch, out, name, threads = sys.argv[1:]
torch.set_num_threads(int(threads))
policy = load_policy(saved, PolicyConfig(device="cpu"), master=True)
learner = Learner(policy, OptimizerConfig(name=name, lr=1e-3, warmup_steps=4))
learner.restore(Path(saved))
learner.update(pickle.loads(Path(batch).read_bytes()), AlgorithmSpec(), 1.0)
learner.save(Path(out))
"""


@pytest.mark.parametrize("optimizer", ["adamw", pytest.param("muon", marks=pytest.mark.slow)])
def test_a_new_process_goes_on_bit_for_bit(
    optimizer: str, tmp_path: Path, make_policy: Make, drawn: Callable[..., Batch]
) -> None:
    policy = make_policy("llama")
    config = OptimizerConfig(name=optimizer, lr=1e-3, warmup_steps=4)
    learner = Learner(policy, config)
    for step in range(2):
        learner.update(drawn(policy, step=step), REINFORCE, 1.0)
    learner.refusals = 2
    learner.save(tmp_path / "saved")
    batch = drawn(policy, step=2)
    (tmp_path / "batch").write_bytes(pickle.dumps(batch))

    places = [str(tmp_path / name) for name in ("saved", "batch", "other")]
    subprocess.run(
        [sys.executable, "-c", CONTINUE, *places, optimizer, str(torch.get_num_threads())],
        cwd=Path(__file__).parents[3],
        env={**os.environ, "PYTHONDONTWRITEBYTECODE": "1"},
        check=True,
        timeout=120,
    )
    learner.update(batch, REINFORCE, 1.0)
    learner.save(tmp_path / "one")
    for name in ("model", "optimizer"):
        one, other = (load_file(tmp_path / process / f"{name}.safetensors") for process in ("one", "other"))
        assert identical(one, other)
    assert (tmp_path / "one/learner.json").read_text() == (tmp_path / "other/learner.json").read_text()


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("name", ["qwen3", "gpt2"])
def test_restoring_takes_over_counters_and_random_state_and_goes_on_bit_for_bit(
    name: str, optimizer: str, tmp_path: Path, make_policy: Make, drawn: Callable[..., Batch]
) -> None:
    config = OptimizerConfig(name=optimizer, lr=1e-3, warmup_steps=4)
    policy = make_policy(name)
    learner = Learner(policy, config, step=5)
    learner.update(drawn(policy), REINFORCE, 1.0)
    learner.save(tmp_path)
    if optimizer == "muon":  # as an older version has saved it
        state = json.loads((tmp_path / "learner.json").read_text())
        state["applied"] = state.pop("optimizer_steps")
        (tmp_path / "learner.json").write_text(json.dumps(state))
    next_numbers = torch.rand(3)
    batch = drawn(policy, step=1)
    learner.update(batch, REINFORCE, 1.0)

    other = Learner(make_policy(name, seed=1), config)
    other.update(drawn(other.policy), REINFORCE, 1.0)  # another state, to be replaced
    other.restore(tmp_path)
    assert torch.equal(torch.rand(3), next_numbers)
    assert (other.step, other.optimizer_steps, other.refusals) == (6, 1, 0)
    assert other.learned is not None
    assert (other.learned.step, other.learned.applied) == (6, True)
    other.update(batch, REINFORCE, 1.0)
    assert identical(weights(other), weights(learner))
    assert identical(moments(other), moments(learner))


def test_a_learner_that_has_not_learned_yet_is_saved_and_restored(
    tmp_path: Path, make_policy: Make, drawn: Callable[..., Batch]
) -> None:
    Learner(make_policy(), PLAIN, step=3).save(tmp_path)
    other = Learner(make_policy(seed=1), PLAIN)
    other.update(drawn(other.policy), REINFORCE, 1.0)  # moments that have to go
    assert moments(other)
    other.restore(tmp_path)
    assert (other.step, other.optimizer_steps, other.learned, moments(other)) == (3, 0, None, {})
    assert identical(weights(other), weights(Learner(make_policy(), PLAIN)))


@pytest.mark.parametrize("frozen", ["", "lm_head"])
def test_where_a_file_has_its_weights_decides_no_bit(frozen: str, make_policy: Make) -> None:
    """Weights that are read from a file begin anywhere, and a product of a single row depends on that."""
    found = []
    for displaced in (0, 10):
        policy = make_policy("llama")
        for name, parameter in policy.model.named_parameters():
            parameter.requires_grad = not frozen or frozen not in name
            place = torch.empty(parameter.numel() + displaced)[displaced:].view(parameter.shape)
            parameter.data = place.copy_(parameter.data)
        learner = Learner(policy, OptimizerConfig(lr=1e-3, warmup_steps=0, microbatch_tokens=1))
        batch = judged(np.array([[1], [0], [0]], dtype=np.float32))  # a pass has one token
        assert learner.update(batch, AlgorithmSpec(name="reinforce_pp"), 1.0).applied
        found.append(weights(learner) | moments(learner))
    assert identical(*found)
