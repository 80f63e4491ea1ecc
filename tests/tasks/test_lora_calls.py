"""Trainer and generator of a run with adapters, without a flow."""

import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from infra.cluster.resident import drop
from infra.runs.checkpoints import CheckpointConfig
from infra.storage.faults import explained
from infra.storage.lock import acquire
from infra.weights.version import SyncConfig, newest_version
from rl.config import PolicyConfig, SamplingConfig
from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.optimizer_config import OptimizerConfig
from rl.lora_config import LoraConfig, OtherBaseError
from rl.records import Batch, Problem
from tasks.calls.base import BaseDamaged, BaseLost
from tasks.calls.generator import Generator, prefetch
from tasks.calls.inflight import Inflight
from tasks.calls.scorer import Scorer
from tasks.calls.trained import drop_publisher
from tasks.calls.trainer import Trainer
from tasks.calls.weights import Weights
from tasks.mending import MENDABLE

LORA = PolicyConfig(device="cpu", lora=LoraConfig(rank=2))
PROBLEMS = [Problem("What is 3 plus 4?", "7", "test:0")]


@pytest.fixture
def mine(tmp_path: Path, half_right: Path) -> Iterator[Trainer]:
    lock = acquire(str(tmp_path / "run"), print)
    yield Trainer(
        run_uri=str(tmp_path / "run"),
        source=str(half_right),
        policy=LORA,
        optimizer=OptimizerConfig(lr=1e-3),
        algorithm=AlgorithmSpec(),
        sampling=SamplingConfig(max_tokens=12),
        checkpoint=CheckpointConfig(),
        sync=SyncConfig(),
        window=1,
        steps=20,
        fence=lock.new_fence(),
        seed=5,
    )
    lose()
    lock.release()


def lose() -> None:
    """What the processes had in memory."""
    drop_publisher("learner")
    for name in ("learner", "sampler", "mirror"):
        drop(name)


def adapters(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "state" / "0" / "adapter_model.safetensors")


@pytest.mark.slow
def test_every_session_begins_with_the_same_adapters_and_another_seed_with_others(
    mine: Trainer, tmp_path: Path
) -> None:
    begun = mine.begin()
    assert begun.vocabulary > 300
    first = adapters(tmp_path / "run")
    assert begun.trained == sum(value.numel() for value in first.values())
    base = load_file(tmp_path / "run" / "base" / "model.safetensors")
    assert begun.parameters == begun.trained + sum(value.numel() for value in base.values())
    names = {file.name for file in (tmp_path / "run" / "base").iterdir()}
    assert {"config.json", "model.safetensors", "tokenizer.json"} < names
    lose()
    assert mine.begin().step == 0  # from its checkpoint and its base
    lock = acquire(str(tmp_path / "other"), print)
    for seed, same in ((5, True), (6, False)):
        drop("learner")
        other = replace(mine, run_uri=str(tmp_path / "other"), seed=seed, fence=lock.new_fence())
        other.begin()
        found = adapters(tmp_path / "other")
        assert all(torch.equal(found[name], first[name]) for name in first) == same
        (tmp_path / "other" / "state").rename(tmp_path / f"state{seed}")
    lock.release()


@pytest.mark.slow
def test_a_generator_takes_no_other_base_than_the_trainer_s(mine: Trainer, tmp_path: Path, half_right: Path) -> None:
    mine.begin()
    mine.publish(0)
    version = newest_version(str(tmp_path / "run"))
    assert version is not None
    generator = Generator(LORA, SamplingConfig(max_tokens=12), samples=2, seed=0, patience=0)
    assert generator.generate(version, 0, [0], PROBLEMS).tokens.size
    lose()
    weights = half_right / "model.safetensors"
    other = tmp_path / "another"
    other.mkdir()
    for file in half_right.iterdir():
        (other / file.name).write_bytes(file.read_bytes())
    changed = bytearray(weights.read_bytes())
    changed[-2] ^= 1
    (other / "model.safetensors").write_bytes(changed)
    with pytest.raises(OtherBaseError, match="another than the one that the adapters were trained on; restore that"):
        replace(generator, public=str(other)).generate(version, 0, [0], PROBLEMS)
    lose()
    assert replace(generator, public=str(half_right)).generate(version, 0, [0], PROBLEMS).tokens.size
    lose()
    stored = tmp_path / "run" / "base" / "model.safetensors"
    stored.write_bytes(changed)
    with pytest.raises(BaseDamaged, match=r"base is torn: 'model\.safetensors'") as met:
        generator.generate(version, 0, [0], PROBLEMS)
    assert not isinstance(met.value, MENDABLE)  # to publish the version once more is in vain


@pytest.mark.slow
def test_newer_adapters_are_swapped_in_in_the_middle_of_a_lease(mine: Trainer, monkeypatch: pytest.MonkeyPatch) -> None:
    mine.begin()
    old = mine.publish(0).version
    flying = Inflight(mine.fence, 0)
    generator = Generator(LORA, SamplingConfig(max_tokens=8), samples=4, seed=0, patience=0, inflight=flying)
    rollouts = generator.generate(old, 1, [0], PROBLEMS)
    rewards = np.array([[1, 0, 0, 0]], dtype=np.float32)
    assert mine.advance(0, Batch(rollouts, rewards, (("right", *["wrong"] * 3),)), {}).applied
    new = mine.publish(1).version
    looks = 0

    def check() -> None:
        nonlocal looks
        looks += 1
        if looks == 4:
            prefetch(new, mine.fence)
            for thread in threading.enumerate():
                if thread.name == "weights":
                    thread.join(60)

    monkeypatch.setattr("tasks.calls.generator.cancellation_check", lambda: check)
    found = generator.generate(old, 1, [0], PROBLEMS)
    assert set(found.versions[found.inside]) == {0, 1}
    assert (found.versions[..., 3:][found.inside[..., 3:]] == 1).all()
    by_old, by_new = (Scorer(Weights(LORA, patience=0), 1.0).score(version, found) for version in (old, new))
    assert np.abs(by_old - by_new).max() > 1e-3
    expected = np.where(found.versions == 0, by_old, by_new)
    np.testing.assert_allclose(found.logprobs[found.inside], expected[found.inside], atol=1e-5)
    drop("reference")


@pytest.mark.slow
@pytest.mark.parametrize("left", ["torn", "no manifest", "nothing"])
def test_a_base_that_is_no_longer_whole_is_stored_anew_from_the_model_that_it_was(
    mine: Trainer, tmp_path: Path, half_right: Path, left: str
) -> None:
    mine.begin()
    mine.publish(0)
    lose()
    base = tmp_path / "run" / "base"
    weights = (base / "model.safetensors").read_bytes()
    damaged = bytearray(weights)
    damaged[-2] ^= 1
    if left == "nothing":
        shutil.rmtree(base)
    elif left == "torn":
        (base / "model.safetensors").write_bytes(damaged)
    else:
        (base / "manifest.json").unlink()
    other = tmp_path / "other"
    shutil.copytree(half_right, other)
    (other / "model.safetensors").write_bytes(damaged)
    for source, why in (
        (str(other), "trained on; restore that one"),
        (str(tmp_path / "none"), "cannot be loaded"),
        ("", "warm-up"),
    ):
        with pytest.raises(BaseLost, match=f"the frozen model of the run is missing or damaged: .*{why}") as lost:
            replace(mine, source=source).begin()
        assert "restore it, or policy.model as it was" in str(explained(lost.value))
        assert "resume" not in str(explained(lost.value))
    (warning,) = mine.begin().warnings
    assert "the frozen model of the run is missing or damaged" in warning
    assert warning.endswith(f"it was stored anew from {half_right}")
    assert (base / "model.safetensors").read_bytes() == weights
    lose()
    assert not mine.begin().warnings
    version = newest_version(str(tmp_path / "run"))
    assert version is not None
    generator = Generator(LORA, SamplingConfig(max_tokens=12), samples=2, seed=0, patience=0)
    assert generator.generate(version, 0, [0], PROBLEMS).tokens.size
