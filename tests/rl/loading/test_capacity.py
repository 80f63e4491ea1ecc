"""What is said to fit, beside what a real learner and a real sampler take."""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rl.config import PolicyConfig
from rl.learning.learner import Learner
from rl.learning.packing import pack, rows_of
from rl.learning.passes import Passes
from rl.loading import capacity
from rl.loading.capacity import Fit, fits
from rl.loading.policy import load_policy
from rl.lora_config import LoraConfig
from rl.model import activations, memory
from rl.model.activations import checkpointed_bytes, kept_bytes
from rl.model.head import attention_of
from rl.model.narrow import compute_in
from rl.model.policy import Policy, UnknownModelError, save_policy
from rl.records import Batch
from rl.sampling.slots import Slots
from tests.bench.architectures import ARCHITECTURES, Architecture, build
from tests.rl.architectures import REFUSED, each_of
from tests.rl.saved import saved as saved_model
from tests.rl.updates import PLAIN, REINFORCE

FREE = 2**30
RANK = 4


@pytest.fixture(autouse=True)
def so_much_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (memory, capacity):
        monkeypatch.setattr(module, "free_bytes", lambda _: FREE)


MIXTURES = [one for one in ARCHITECTURES if {"num_experts", "num_local_experts"} & one.changes.keys()]


@pytest.fixture(params=["qwen3", "llama", "gpt2"])
def saved(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    build_small: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
) -> str:
    model = build_small(request.param)
    save_policy(Policy(model, tokenizer, torch.device("cpu"), torch.float32), tmp_path)
    return str(tmp_path)


METHODS = {
    "full": LoraConfig(),
    f"policy.lora {RANK}": LoraConfig(rank=RANK),
    f"policy.lora {RANK}, policy.lora.base bfloat16": LoraConfig(rank=RANK, base="bfloat16"),
}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
def test_it_is_what_a_learner_and_a_sampler_take(saved: str, method: str, drawn: Callable[..., Batch]) -> None:
    compare(saved, [method], drawn)


@pytest.mark.slow
@each_of(MIXTURES)
def test_mixtures_of_experts_fit_as_they_are_trained(
    architecture: Architecture,
    tmp_path: Path,
    tokenizer: PreTrainedTokenizerBase,
    drawn: Callable[..., Batch],
) -> None:
    path = saved_model(tmp_path, build(architecture, len(tokenizer)), tokenizer)
    try:
        load_policy(path, PolicyConfig(device="cpu"), master=True)
    except UnknownModelError:
        assert architecture.name in REFUSED
        return  # it is never trained
    assert architecture.name not in REFUSED
    compare(path, METHODS, drawn)


def compare(path: str, methods: Iterable[str], drawn: Callable[..., Batch]) -> None:
    found = {one.method: one for one in fits(path, 50, rank=RANK, wanted="cpu").methods}
    sampled = load_policy(path, PolicyConfig(device="cpu"))
    for method in methods:
        compare_method(found[method], path, sampled, drawn)


def compare_method(said: Fit, path: str, sampled: Policy, drawn: Callable[..., Batch]) -> None:
    assert said.generator_gb * 1e9 == pytest.approx(sum(p.nbytes for p in sampled.model.parameters()))
    policy = load_policy(path, PolicyConfig(device="cpu", lora=METHODS[said.method]), master=True)
    learner = Learner(policy, PLAIN)
    batch = drawn(policy)
    learner.update(batch, REINFORCE, 1.0)
    states = [value for one in learner.optimizers for of in one.state.values() for value in of.values() if value.ndim]
    weights = sum(p.nbytes for p in policy.model.parameters())
    trained = sum(p.nbytes for p in learner.parameters)
    assert said.trained * 4 == pytest.approx(trained, rel=1e-3)  # ERNIE has a frozen bias
    assert said.trainer_gb * 1e9 == pytest.approx(weights + trained + sum(value.nbytes for value in states), rel=1e-3)

    left = (FREE - said.trainer_gb * 1e9 - said.generator_gb * 1e9) * 0.4
    assert said.at_once == Slots(sampled, budget=left).capacity(10**6, 1, 0, 50)[0]
    packed = pack(batch.rollouts, rows_of(batch.rollouts, [2]), policy.device)
    inputs = {"mask": packed.mask, "input_ids": packed.tokens, "position_ids": packed.positions}
    kept = checkpointed_bytes(policy, kept_bytes(policy, **inputs) / packed.tokens.numel())
    mask = 4 if attention_of(policy.model) == "sdpa" else 0  # bytes, with the square of the length
    longest = (math.sqrt(kept**2 + 4 * mask * left) - kept) / (2 * mask) if mask else left / kept
    longest = min(longest, policy.reach[0] if policy.reach else left)  # its window limits gpt-oss
    assert said.longest == pytest.approx(longest, rel=0.2)


@pytest.mark.slow
def test_a_long_row_s_attention_counts_with_the_square_of_its_length(
    tmp_path: Path, build_small: Callable[..., PreTrainedModel], tokenizer: PreTrainedTokenizerBase
) -> None:
    policy = Policy(build_small("gemma2"), tokenizer, torch.device("cpu"), torch.float32)
    save_policy(policy, tmp_path)
    said = fits(str(tmp_path), 50, wanted="cpu").methods[0]
    left = (FREE - said.trainer_gb * 1e9 - said.generator_gb * 1e9) * 0.4
    short, long = (_kept_of(policy, length) for length in (512, 1024))
    growth = (long - short) / 512
    assert said.longest < policy.positions
    of_the_longest = checkpointed_bytes(policy, short + growth * (said.longest - 512))
    assert said.longest * of_the_longest == pytest.approx(left, rel=0.05)


def _kept_of(policy: Policy, length: int) -> float:
    at = torch.arange(length)
    inputs = {"mask": (at[:, None] >= at)[None, None], "input_ids": at[None] % 7, "position_ids": at[None]}
    return kept_bytes(policy, **inputs) / length


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_head_s_copy_in_the_type_of_the_arithmetic_is_counted(
    dtype: torch.dtype, make_policy: Callable[..., Policy]
) -> None:
    policy = replace(make_policy("llama"), dtype=dtype)
    head = policy.model.get_output_embeddings().weight  # type: ignore[no-untyped-call]
    cpu, cuda = torch.device("cpu"), torch.device("cuda")
    assert activations.copy_bytes(policy, cuda) == (0 if dtype == torch.float32 else 2 * head.numel())
    assert activations.copy_bytes(policy, cpu) == 0  # it is taken in slices
    policy.model.to(torch.bfloat16)  # type: ignore[arg-type]
    compute_in(policy.model, dtype)
    assert activations.copy_bytes(policy, cpu) == (4 * head.numel() if dtype == torch.float32 else 0)


@pytest.mark.parametrize("copied", [True, False])
def test_passes_leave_room_for_it(
    copied: bool, make_policy: Callable[..., Policy], drawn: Callable[..., Batch], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory, "free_bytes", lambda _: 10**9)
    monkeypatch.setattr(activations, "copy_bytes", lambda *_: 10**9 if copied else 0)
    policy = make_policy()
    learner = Learner(policy, PLAIN)
    learner.update(drawn(policy), REINFORCE, 1.0)
    assert learner.accumulation.passes == (Passes(512, True) if copied else Passes(1024, False))


@pytest.mark.slow
def test_nothing_is_said_to_fit_where_there_is_no_room(saved: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (memory, capacity):
        monkeypatch.setattr(module, "free_bytes", lambda _: 1000)
    assert {(one.longest, one.at_once) for one in fits(saved, 50, wanted="cpu").methods} == {(0, 0)}


def test_the_tiny_policy_needs_no_files() -> None:
    found = fits("tiny", 64, wanted="cpu")
    assert found.parameters == 905_984
    assert [one.method for one in found.methods] == [
        "full",
        "policy.lora 16",
        "policy.lora 16, policy.lora.base bfloat16",
    ]


@pytest.mark.parametrize(
    "said",
    [
        {"model_type": "nonsense"},
        {"model_type": "qwen3", "num_attention_heads": 0},
        {"model_type": "qwen3", "num_hidden_layers": "two"},
        {"model_type": "qwen3", "dtype": "foo"},
        {"model_type": "qwen3", "vocab_size": -5},
    ],
    ids=str,
)
def test_a_model_that_transformers_cannot_make_is_one_line(said: dict[str, Any], tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(said))
    with pytest.raises(UnknownModelError, match=r"cannot be loaded: ") as raised:
        fits(str(tmp_path), 64)
    assert "\n" not in str(raised.value)
