"""The forward passes of an update, where memory is short."""

import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rl.config import PolicyConfig
from rl.learning import passes
from rl.learning import update as update_module
from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.learner import Learner
from rl.learning.packing import Packed
from rl.learning.passes import Passes
from rl.loading.policy import freeze
from rl.lora_config import LoraConfig
from rl.model import memory
from rl.model.head import shared_mask
from rl.model.memory import NoRoomError, is_out_of_memory
from rl.model.policy import Policy
from rl.records import Batch
from tests.rl.updates import PLAIN, Make, gradient_of, identical, weights

Watched = list[tuple[int, bool]]  # positions of each pass, and whether layers were checkpointed


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Watched]:
    """Have passes of more positions than that be out of memory, after the gradient of the head was added."""
    seen: Watched = []
    scores = update_module.token_scores

    def of(limit: int) -> Watched:
        def limited(policy: Policy, packed: Packed, *given: Any, **more: Any) -> tuple[Tensor, Tensor]:
            found = scores(policy, packed, *given, **more)
            seen.append((packed.tokens.numel(), more["checkpointing"]))
            if packed.tokens.numel() > limit:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
            return found

        monkeypatch.setattr(update_module, "token_scores", limited)
        return seen

    return of


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


def test_an_update_out_of_memory_is_made_with_smaller_passes_that_stay(
    make_policy: Make, drawn: Callable[..., Batch], watched: Callable[[int], Watched], tmp_path: Path
) -> None:
    batch = drawn(make_policy(eager=4.0))
    expected = gradient_of(Learner(make_policy(eager=4.0), PLAIN), batch)
    seen = watched(60)
    learner = Learner(make_policy(eager=4.0), PLAIN)
    found = gradient_of(learner, batch)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)
    assert learner.learned is not None
    assert learner.learned.applied
    shrunk = learner.accumulation.passes
    assert shrunk is not None
    assert shrunk.positions < 512
    assert shrunk.checkpointing  # before passes become that short
    assert (
        learner.learned.said
        == f"out of memory; forward passes of {shrunk.positions} positions, with checkpointing from now on"
    )
    assert [size for size, _ in seen if size > 60] == sorted((size for size, _ in seen if size > 60), reverse=True)

    failed = len([size for size, _ in seen if size > 60])
    learner.update(batch, AlgorithmSpec(), 1.0)
    assert learner.learned.said == ""
    assert len([size for size, _ in seen if size > 60]) == failed  # nothing was tried again

    learner.save(tmp_path)
    again = Learner(make_policy(eager=4.0), PLAIN)
    again.restore(tmp_path)
    again.update(batch, AlgorithmSpec(), 1.0)
    assert again.accumulation.passes == shrunk
    assert len([size for size, _ in seen if size > 60]) == failed

    told = Learner(make_policy(eager=4.0), PLAIN.model_copy(update={"checkpointing": "on"}))
    told.restore(tmp_path)  # with what was said to help, which is tried
    told.update(batch, AlgorithmSpec(), 1.0)
    assert len([size for size, _ in seen if size > 60]) > failed


@pytest.mark.parametrize("checkpointing", ["auto", "off", "on"])
def test_what_does_not_fit_with_one_sequence_is_one_line_and_changes_nothing(
    checkpointing: str, make_policy: Make, drawn: Callable[..., Batch], watched: Callable[[int], Watched]
) -> None:
    learner = Learner(make_policy(eager=4.0), PLAIN.model_copy(update={"checkpointing": checkpointing}))
    batch, before = drawn(make_policy(eager=4.0)), weights(learner)
    watched(0)
    with pytest.raises(NoRoomError) as error:
        learner.update(batch, AlgorithmSpec(), 1.0)
    helps = "optimizer.checkpointing on, " if checkpointing == "off" else ""
    asks = f"give {helps}policy.lora 16, a smaller sampling.max_tokens or a smaller policy.model"
    assert f"does not fit into the memory of cpu: {asks}" in str(error.value)
    assert "\n" not in str(error.value)
    assert identical(weights(learner), before)
    assert learner.step == 0
    assert all(parameter.grad is None for parameter in learner.parameters)


def test_an_optimizer_whose_state_does_not_fit_is_one_line(
    make_policy: Make, drawn: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    learner, batch = Learner(make_policy(eager=4.0), PLAIN), drawn(make_policy(eager=4.0))
    monkeypatch.setattr(torch.optim.AdamW, "step", fail)
    with pytest.raises(
        NoRoomError, match=r"the state of adamw .*: give optimizer.state 8bit, policy.lora 16 or a smaller"
    ):
        learner.update(batch, AlgorithmSpec(), 1.0)


def test_a_row_for_which_there_is_no_room_is_measured_as_endless(
    make_policy: Make, drawn: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> int:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")

    monkeypatch.setattr(memory, "kept_bytes", fail)
    learner = Learner(make_policy(eager=4.0), PLAIN)
    learner.update(drawn(make_policy(eager=4.0)), AlgorithmSpec(), 1.0)
    assert learner.accumulation.passes == Passes(512, True)


def test_other_errors_are_not_taken_for_it(
    make_policy: Make, drawn: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    batch = drawn(make_policy(eager=4.0))
    monkeypatch.setattr(update_module, "token_scores", fail)
    with pytest.raises(RuntimeError, match="device-side assert"):
        Learner(make_policy(eager=4.0), PLAIN).update(batch, AlgorithmSpec(), 1.0)


@pytest.mark.parametrize(
    ("free", "config", "expected"),
    [
        (10**12, {}, Passes(1024, False)),
        (10**12, {"microbatch_tokens": 300}, Passes(300, False)),
        (1, {}, Passes(512, True)),
        (1, {"checkpointing": "off"}, Passes(512, False)),
        (1, {"microbatch_tokens": 300}, Passes(300, True)),
        (1, {"microbatch_tokens": 300, "checkpointing": "off"}, Passes(300, False)),
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
    limited = free == 1 and expected != Passes(300, False)
    assert learned.said == (f"memory allows {expected}" if limited else "")


@pytest.mark.parametrize("name", ["gemma2", "qwen3"])
def test_what_a_long_row_keeps_is_known_from_short_ones(name: str, make_policy: Make) -> None:
    policy = make_policy(name)
    at = torch.arange(1024)
    mask = shared_mask(policy.model, (at[:, None] >= at)[None, None], policy.dtype)
    whole = memory.kept_bytes(policy, mask=mask, input_ids=at[None] % 7, position_ids=at[None])
    assert passes._kept_at(policy, 1024) == pytest.approx(whole / 1024, rel=0.02)


def test_a_sequence_longer_than_a_pass_counts_whole(make_policy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make_policy("gemma2")
    wanted = Passes(1024, False)
    room = 1024 * passes._kept_at(policy, 1024)
    monkeypatch.setattr(passes, "spare_bytes", lambda *_: room)
    monkeypatch.setattr(memory, "CHUNK", 0)  # no logits
    assert passes._fitting(policy, PLAIN, wanted, 1000, 0) == wanted
    assert passes._fitting(policy, PLAIN, wanted, 2000, 0).checkpointing


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
        assert each.accumulation.passes == Passes(512, True)
    assert identical(weights(learner), weights(again))


CHILD = """
import json, resource, sys
import torch
from flows.benches.update import batch_of, learner_of
from rl.learning.algorithm_config import AlgorithmSpec
torch.set_num_threads(1)
learner = learner_of(1, 600)
learner.update(batch_of(64, 600), AlgorithmSpec(), 1.0)
learner.config = learner.accumulation.config = learner.config.model_copy(update={"checkpointing": "off"})
learner.accumulation.passes = type(learner.accumulation.passes)(100_000, False)
if (limit := int(sys.argv[1])):
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + limit, -1))
learned = learner.update(batch_of(2048, 600), AlgorithmSpec(), 1.0)
positions = learner.accumulation.passes.positions
print(json.dumps([learned.metrics["policy/grad_norm"], learned.applied, learned.said, positions]))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space, as Linux does")
def test_a_processor_without_memory_halves_the_passes() -> None:
    found = []
    for limit in (0, 250_000_000):
        ended = subprocess.run([sys.executable, "-c", CHILD, str(limit)], capture_output=True, text=True, timeout=300)
        assert ended.returncode == 0, ended.stderr
        found.append(json.loads(ended.stdout))
    (norm, _, said, _), (of_less, applied, said_of_less, positions) = found
    assert said == ""
    assert said_of_less.startswith("out of memory; forward passes of ")
    assert applied
    assert positions < 2048
    assert of_less == pytest.approx(norm, rel=1e-4)


def test_what_is_out_of_memory() -> None:
    with pytest.raises(RuntimeError) as error:
        torch.empty(2**60)
    assert is_out_of_memory(error.value)
    said = ("MPS backend out of memory (MPS allocated: 1.00 GB)", "std::bad_alloc", "could not create a primitive")
    assert all(is_out_of_memory(RuntimeError(one)) for one in said)
    assert is_out_of_memory(MemoryError())
    unsupported = "could not create a primitive descriptor for the matmul primitive. Run workload with …"
    assert not any(is_out_of_memory(RuntimeError(one)) for one in ("mat1 and mat2 shapes differ", unsupported))
    assert not is_out_of_memory(ValueError("out of memory"))
