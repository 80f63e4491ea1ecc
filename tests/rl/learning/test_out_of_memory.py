"""An update that runs out of memory."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from rl.learning import passes
from rl.learning import update as update_module
from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.learner import Learner
from rl.learning.packing import Packed
from rl.model import scores
from rl.model.memory import NoRoomError
from rl.model.policy import Policy
from rl.records import Batch
from tests.rl.updates import PLAIN, Make, gradient_of, identical, weights

Watched = list[tuple[int, bool]]  # positions of each pass, and whether layers were checkpointed


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], Watched]:
    """Have passes of more positions than that be out of memory, after the gradient of the head was added."""
    seen: Watched = []
    made = update_module.token_scores

    def of(limit: int) -> Watched:
        def limited(policy: Policy, packed: Packed, *given: Any, **more: Any) -> tuple[Tensor, Tensor]:
            found = made(policy, packed, *given, **more)
            seen.append((packed.tokens.numel(), more["checkpointing"]))
            if packed.tokens.numel() > limit:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
            return found

        monkeypatch.setattr(update_module, "token_scores", limited)
        return seen

    return of


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


def test_where_nothing_else_is_left_fewer_logits_exist_at_once(
    make_policy: Make, drawn: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = drawn(make_policy(eager=4.0))
    expected = gradient_of(Learner(make_policy(eager=4.0), PLAIN), batch)
    made = update_module.token_scores
    seen, sizes = list[int | None](), set[int]()

    def limited(policy: Policy, packed: Packed, *given: Any, **more: Any) -> tuple[Tensor, Tensor]:
        seen.append(packed.chunk)
        if packed.chunk is None or packed.chunk > 20:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB")
        return made(policy, packed, *given, **more)

    def parts(count: int, size: int) -> list[slice]:
        sizes.add(size)
        return [slice(at, min(count, at + size)) for at in range(0, count, size)]

    monkeypatch.setattr(update_module, "token_scores", limited)
    monkeypatch.setattr(scores, "_parts", parts)
    monkeypatch.setattr(passes, "ROWS", 8)
    learner = Learner(make_policy(eager=4.0), PLAIN)
    found = gradient_of(learner, batch)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)
    assert learner.accumulation.passes is not None
    assert learner.accumulation.passes.checkpointing  # before it comes to that
    assert learner.accumulation.passes.chunk == max(sizes) == 14  # of 29
    assert learner.learned is not None
    assert learner.learned.said.endswith(", with checkpointing, logits of 14 tokens at once from now on")
    assert seen.index(14) == len([chunk for chunk in seen if chunk != 14])  # nothing was tried again


@pytest.mark.parametrize("checkpointing", ["auto", "off", "on"])
def test_what_does_not_fit_with_one_sequence_is_one_line_and_changes_nothing(
    checkpointing: str, make_policy: Make, drawn: Callable[..., Batch], watched: Callable[[int], Watched]
) -> None:
    learner = Learner(make_policy(eager=4.0), PLAIN.model_copy(update={"checkpointing": checkpointing}))
    batch, before = drawn(make_policy(eager=4.0)), weights(learner)
    watched(0)
    with pytest.raises(NoRoomError) as error:
        learner.update(batch, AlgorithmSpec(), 1.0)
    helps = "optimizer.checkpointing on or " if checkpointing == "off" else ""
    asks = f"give {helps}a smaller sampling.max_tokens, or to a new run policy.lora 16 or a smaller policy.model"
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


def test_other_errors_are_not_taken_for_it(
    make_policy: Make, drawn: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    batch = drawn(make_policy(eager=4.0))
    monkeypatch.setattr(update_module, "token_scores", fail)
    with pytest.raises(RuntimeError, match="device-side assert"):
        Learner(make_policy(eager=4.0), PLAIN).update(batch, AlgorithmSpec(), 1.0)


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
