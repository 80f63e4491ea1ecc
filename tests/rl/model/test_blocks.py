"""Attention in blocks is attention by a mask, forward and backward; what cannot have it is told from what can."""

from collections.abc import Callable

import pytest
import torch
from torch.nn.attention.flex_attention import BlockMask, create_mask

from rl.learning import passes
from rl.learning import update as update_module
from rl.learning.learner import Learner
from rl.learning.packing import Packed, microbatches, pack, rows_of
from rl.model import blocks
from rl.model.blocks import WIDTH, Run, block_mask, block_refusal, dense_mask, in_blocks
from rl.model.head import hidden_states
from rl.model.policy import Policy
from rl.records import Batch, Rollouts
from tests.rl.updates import PLAIN, Make, gradient_of

RUNS = [Run(0, 300, 0), Run(300, 310, 0), Run(310, 700, 0), Run(700, 705, 3), Run(705, 705, 3), Run(705, 990, 3)]
LENGTH = 1024  # of their row: two prompts, each with its completions behind it, one of which is empty


def test_a_position_sees_its_own_run_up_to_itself_and_its_prompt() -> None:
    seen = torch.eye(LENGTH, dtype=torch.bool)
    for run in RUNS:
        for at in range(run.start, run.end):
            seen[at, run.start : at + 1] = True
            if RUNS[run.prompt] is not run:
                seen[at, RUNS[run.prompt].start : RUNS[run.prompt].end] = True
    mask = block_mask(RUNS, LENGTH, torch.device("cpu"))
    assert torch.equal(create_mask(mask.mask_mod, 1, 1, LENGTH, LENGTH, device="cpu")[0, 0], seen)
    whole = {
        (at, int(key_at))
        for at, count in enumerate(mask.full_kv_num_blocks[0, 0])  # type: ignore[index]
        for key_at in mask.full_kv_indices[0, 0, at, :count]  # type: ignore[index]
    }
    computed = mask.to_dense()[0, 0]
    assert len(whole) > 3
    for at in range(LENGTH // WIDTH):
        for key_at in range(LENGTH // WIDTH):
            block = seen[at * WIDTH : (at + 1) * WIDTH, key_at * WIDTH : (key_at + 1) * WIDTH]
            assert bool(computed[at, key_at]) == bool(block.any()), "exactly those in which anybody sees anything"
            assert (at, key_at) not in whole or bool(block.all())


def test_a_row_of_no_whole_blocks_is_refused() -> None:
    with pytest.raises(ValueError, match="1000 positions are no whole blocks of 128"):
        block_mask(RUNS, 1000, torch.device("cpu"))


@pytest.mark.usefixtures("flex_backward")
@pytest.mark.parametrize("checkpointing", ["off", "on"])
@pytest.mark.parametrize("name", ["qwen3", "llama"])
def test_an_update_in_blocks_is_the_update(
    name: str,
    checkpointing: str,
    make_policy: Make,
    drawn: Callable[..., Batch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = drawn(make_policy(name, eager=4.0))
    config = PLAIN.model_copy(update={"checkpointing": checkpointing})
    whole, in_parts = (Learner(make_policy(name, eager=4.0), config) for _ in range(2))
    in_parts.accumulation.blocks = True
    monkeypatch.setattr(passes, "LONG", 0)
    rows: list[int] = []
    scores = update_module.token_scores

    def watched(policy: Policy, packed: Packed, *given: object, **more: object) -> object:
        rows.append(len({*packed.group.tolist()}))
        assert len(packed.tokens) == 1
        assert packed.tokens.shape[1] % WIDTH == 0
        return scores(policy, packed, *given, **more)

    expected = gradient_of(whole, batch)
    monkeypatch.setattr(update_module, "token_scores", watched)
    found = gradient_of(in_parts, batch)
    assert sum(rows) == whole.learned.groups  # all completions of a group in one pass
    for one, other in zip(found, expected, strict=True):
        assert (one - other).norm() <= 1e-5 * other.norm() + 1e-7
    assert in_parts.learned.metrics["loss/policy"] == pytest.approx(whole.learned.metrics["loss/policy"], abs=1e-6)


def test_a_pass_in_blocks_stays_within_what_it_was_given(make_rollouts: Callable[..., Rollouts]) -> None:
    rollouts = make_rollouts([[1, 2]] * 64, [[[3] * 7, [4] * 7]] * 64)  # of 16 positions
    rows = rows_of(rollouts, range(64))
    for whole in (False, True):
        passes_of = list(microbatches(rollouts, rows, 1024, blocks=whole))
        sizes = [pack(rollouts, part, torch.device("cpu"), blocks=whole).tokens.numel() for part in passes_of]
        assert max(sizes) == 1024
        assert sum(map(len, passes_of)) == 64


def test_what_a_pass_keeps_of_a_position_in_blocks_is_the_same_in_a_row_of_any_length(make_policy: Make) -> None:
    policy = make_policy("gemma2")  # whose attention keeps its weights otherwise
    assert passes._kept_at(policy, 4096) > 2 * passes._kept_at(policy, 128)
    assert passes._kept_at(policy, 4096, blocks=True) == passes._kept_at(policy, 256, blocks=True)


def test_a_processor_has_no_kernel_for_it_and_takes_masks(
    make_policy: Make, drawn: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = make_policy()
    monkeypatch.setattr(passes, "LONG", 0)
    learner = Learner(policy, PLAIN)
    gradient_of(learner, drawn(policy))
    assert learner.accumulation.blocks is False
    assert learner.learned.said == ""


@pytest.mark.usefixtures("flex_backward")
def test_a_frozen_model_s_attention_is_tried_forward(make_policy: Make) -> None:
    policy = make_policy()
    policy.model.requires_grad_(False)
    assert block_refusal(policy) == ""


def test_whether_it_is_in_blocks_follows_from_the_batch_alone(
    make_policy: Make, make_rollouts: Callable[..., Rollouts], monkeypatch: pytest.MonkeyPatch
) -> None:
    short, long = (make_rollouts([[1, 2]], [[[3] * count, [4] * count]]) for count in (10, 30))
    monkeypatch.setattr(passes, "LONG", 20)
    accumulation = Learner(make_policy(), PLAIN).accumulation
    accumulation.blocks = True
    seen: list[bool] = []

    def work(packed: Packed, _: bool) -> dict[str, float]:
        seen.append(isinstance(packed.mask, BlockMask))
        return {}

    for rollouts in (short, long, short):
        accumulation.add(rollouts, [0], work)
    assert seen == [False, True, False]


@pytest.mark.usefixtures("flex_backward")
def test_attention_of_another_kind_is_refused(make_policy: Make) -> None:
    assert "ndim" in block_refusal(make_policy("gpt2"))  # it looks into its mask
    policy = make_policy()
    policy.model.set_attn_implementation("eager")
    assert block_refusal(policy) == "its attention is not the plain one"


@pytest.mark.usefixtures("flex_backward")
def test_what_computes_something_else_is_refused(make_policy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = make_policy()
    assert block_refusal(policy) == ""
    monkeypatch.setattr(blocks, "block_mask", lambda _, *where: block_mask([Run(0, 200, 0)], *where))
    assert "apart" in block_refusal(policy)


def test_a_device_without_memory_is_no_such_model(make_policy: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(blocks, "block_mask", full)
    with pytest.raises(torch.OutOfMemoryError):
        block_refusal(make_policy())


def test_inside_another_mask_is_an_error_and_outside_the_model_is_as_before(make_policy: Make) -> None:
    policy = make_policy()
    segments = torch.tensor([[0, 0, 1, 2]])
    inputs = {"input_ids": segments, "position_ids": torch.arange(4)[None], "use_cache": False}
    before = hidden_states(policy.model, mask=dense_mask(segments), **inputs)
    by_blocks = block_mask([Run(0, 2, 0)], 2 * WIDTH, policy.device)
    with in_blocks(policy.model, by_blocks), pytest.raises(TypeError, match="masks of its own"):
        hidden_states(policy.model, mask=dense_mask(segments), **inputs)
    assert torch.equal(hidden_states(policy.model, mask=dense_mask(segments), **inputs), before)
