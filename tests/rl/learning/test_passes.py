"""The forward passes of an update."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rl.config import PolicyConfig
from rl.learning import passes
from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.learner import Learner
from rl.learning.passes import Passes
from rl.loading.policy import freeze
from rl.lora_config import LoraConfig
from rl.model import activations, memory
from rl.model.head import shared_mask
from rl.records import Batch
from tests.rl.updates import PLAIN, Make, gradient_of, identical, weights


@pytest.mark.parametrize("name", ["qwen3", "llama", "gpt2"])
def test_with_checkpointing_the_gradient_is_the_same_bit_for_bit(
    name: str, make_policy: Make, drawn: Callable[..., Batch]
) -> None:
    batch = drawn(make_policy(name, eager=4.0))
    found = [
        gradient_of(Learner(make_policy(name, eager=4.0), PLAIN.model_copy(update={"checkpointing": how})), batch)
        for how in ("on", "off")
    ]
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_with_checkpointing_layers_are_computed_twice_and_the_model_stays_as_it_was(
    make_policy: Make, drawn: Callable[..., Batch]
) -> None:
    policy = make_policy(eager=4.0)
    batch = drawn(policy)
    learner = Learner(policy, PLAIN.model_copy(update={"checkpointing": "on"}))
    learner.accumulation.passes = Passes(1024, True)  # no look at the memory, which is a pass of its own
    calls: list[object] = []
    layer = policy.model.get_decoder().layers[0].self_attn
    layer.register_forward_hook(lambda *_: calls.append(1))
    learner.update(batch, AlgorithmSpec(), 1.0)
    assert len(calls) == 2
    assert not any("forward" in vars(module) for module in policy.model.modules())


def test_a_row_for_which_there_is_no_room_is_measured_as_endless(
    make_policy: Make, drawn: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    monkeypatch.setattr(activations, "kept_bytes", fail)
    learner = Learner(make_policy(eager=4.0), PLAIN)
    learner.update(drawn(make_policy(eager=4.0)), AlgorithmSpec(), 1.0)
    assert learner.accumulation.passes == Passes(512, True)


@pytest.mark.parametrize(
    ("free", "config", "expected"),
    [
        (10**12, {}, Passes(1024, False)),
        (10**12, {"microbatch_tokens": 300}, Passes(300, False)),
        (1, {}, Passes(512, True, 32)),
        (1, {"checkpointing": "off"}, Passes(512, False, 32)),
        (1, {"microbatch_tokens": 300}, Passes(300, True, 32)),
        (1, {"microbatch_tokens": 300, "checkpointing": "off"}, Passes(300, False, 32)),
        (10**12, {"checkpointing": "on"}, Passes(1024, True)),
    ],
)
def test_passes_follow_from_the_memory_that_is_free(
    free: int,
    config: dict[str, Any],
    expected: Passes,
    make_policy: Make,
    drawn: Callable[..., Batch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda _: free)
    learner = Learner(make_policy(eager=4.0), PLAIN.model_copy(update=config))
    learned = learner.update(drawn(make_policy(eager=4.0)), AlgorithmSpec(), 1.0)
    assert learner.accumulation.passes == expected
    assert learned.said == (f"memory allows {expected}" if free == 1 else "")


@pytest.mark.parametrize("name", ["gemma2", "qwen3"])
def test_what_a_long_row_keeps_is_known_from_short_ones(name: str, make_policy: Make) -> None:
    policy = make_policy(name)
    at = torch.arange(1024)
    mask = shared_mask(policy.model, (at[:, None] >= at)[None, None], policy.dtype)
    whole = activations.kept_bytes(policy, mask=mask, input_ids=at[None] % 7, position_ids=at[None])
    assert passes._kept_at(policy, 1024) == pytest.approx(whole / 1024, rel=0.02)


def test_in_blocks_a_position_keeps_the_same_however_long_its_row(make_policy: Make) -> None:
    policy = make_policy()
    of_blocks = [passes._kept_at(policy, length, blocks=True) for length in (1_000, 100_000)]
    assert of_blocks[0] == of_blocks[1] < passes._kept_at(policy, 1_000) < passes._kept_at(policy, 100_000) / 10


def test_copies_of_weights_are_not_kept_of_positions(make_policy: Make) -> None:
    policy = replace(make_policy("llama"), dtype=torch.bfloat16)
    one, two = (activations.kept_of_row(policy, length) for length in (8, 16))
    assert one == pytest.approx(two, rel=0.05)


def test_a_sequence_longer_than_a_pass_counts_whole(make_policy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make_policy("gemma2")
    wanted = Passes(1024, False)
    room = 1024 * passes._kept_at(policy, 2000) + activations.passing_bytes(policy, 1024)
    monkeypatch.setattr(passes, "spare_bytes", lambda *_: room)
    assert passes._fitting(policy, PLAIN, wanted, 1000, 0) == wanted
    assert passes._fitting(policy, PLAIN, wanted, 2000, 0).checkpointing


def test_what_an_update_takes_and_keeps_is_not_counted_on(make_policy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, standing = make_policy(), 10**9
    whole = 2 * (1024 * passes._kept_at(policy, 1000) + activations.passing_bytes(policy, 1024))
    for free, checkpointing in ((whole + standing, False), (standing + 1, True)):
        monkeypatch.setattr(memory, "free_bytes", lambda _, free=free: free)
        assert passes._fitting(policy, PLAIN, Passes(1024, False), 1000, standing).checkpointing == checkpointing


@pytest.mark.parametrize(("least", "checkpointing"), [(1e9, False), (0.0, True)])
def test_beside_adapters_a_pass_keeps_no_more_than_the_frozen_weights_take(
    least: float, checkpointing: bool, make_policy: Make, drawn: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda _: 10**12)
    monkeypatch.setattr(passes, "BESIDE_ADAPTERS", least)  # or so much, of a model that is smaller
    policy = make_policy(eager=4.0)
    base = freeze(policy.model, "", PolicyConfig(lora=LoraConfig(rank=2)), policy.dtype, None, master=True)
    learner = Learner(replace(policy, base=base), PLAIN)
    learned = learner.update(drawn(make_policy(eager=4.0)), AlgorithmSpec(), 1.0)
    assert learner.accumulation.passes == Passes(512 if checkpointing else 1024, checkpointing)
    assert learned.said.startswith("to save memory, forward passes of 512" if checkpointing else "")
    assert bool(learned.said) == checkpointing


def test_a_resume_repeats_the_passes_that_little_memory_allowed(
    make_policy: Make, drawn: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    batch = drawn(make_policy(eager=4.0))
    learner = Learner(make_policy(eager=4.0), PLAIN)
    with monkeypatch.context() as patch:
        patch.setattr(memory, "free_bytes", lambda _: 1)
        learner.update(batch, AlgorithmSpec(), 1.0)
    learner.save(tmp_path)
    again = Learner(make_policy(eager=4.0), PLAIN)
    again.restore(tmp_path)
    for each in (learner, again):
        assert each.update(batch, AlgorithmSpec(), 1.0).said == ""
        assert each.accumulation.passes == Passes(512, True, 32)
    assert identical(weights(learner), weights(again))
