"""A frozen model in bfloat16 under float32 arithmetic, beside one whose same numbers are float32."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import save_file
from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from rl.learning.packing import pack, rows_of
from rl.loading.parity import measure
from rl.loading.policy import load_policy
from rl.model.lora import adapters_of, merged_weights
from rl.model.narrow import compute_in
from rl.model.policy import Policy, UnknownModelError, save_base, save_policy
from tests.bench.architectures import ARCHITECTURES, Architecture, build
from tests.rl.architectures import REFUSED, each_of
from tests.rl.learning.test_packing import Make, filled
from tests.rl.loading.test_architectures import by_autograd
from tests.rl.loading.test_lora_architectures import check_gradients, config, logits, trained
from tests.rl.saved import saved

MERGED_TOO = ("Qwen3", "Gemma 3n, text", "Gemma 4, text")

Pair = Callable[[Architecture], tuple[Policy, Policy] | None]

# of small models: learned positions and what sees take the same in models of any size
WIDE = {"OPT": 2.35, "BioGPT": 2.35, "Gemma 3, with vision": 2.4}


@pytest.fixture
def pair(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> Pair:
    """A trainer, and a generator with its adapters; None of a model that is refused."""

    def make(architecture: Architecture) -> tuple[Policy, Policy] | None:
        path = saved(tmp_path / "whole", build(architecture, len(tokenizer)), tokenizer)
        try:
            trainer = trained(load_policy(path, config(base="bfloat16"), master=True))
        except UnknownModelError:
            return None
        save_policy(trainer, tmp_path / "adapters")
        return trainer, load_policy(path, config(base="bfloat16"), adapters=tmp_path / "adapters")

    return make


@pytest.mark.slow
@each_of()
def test_it_takes_two_bytes_a_parameter_and_computes_what_wide_weights_do(
    architecture: Architecture, pair: Pair, make_rollouts: Make
) -> None:
    both = pair(architecture)
    assert (both is None) == (architecture.name in REFUSED)
    if both is None:
        return
    trainer, there = both
    frozen = [one for one in trainer.model.parameters() if not one.requires_grad]
    assert sum(one.nbytes for one in frozen) < WIDE.get(architecture.name, 2.05) * sum(one.numel() for one in frozen)
    assert {one.dtype for one in there.model.parameters()} == {torch.float32}
    for name, buffer in there.model.named_buffers():
        assert torch.equal(trainer.model.get_buffer(name), buffer)
    assert (logits(there.model) - logits(trainer.model)).abs().max() <= 1e-5
    assert measure(trainer).gap < 1e-4

    rollouts = filled(make_rollouts, [(2, [3, 1, 5]), (6, [2, 4, 3])])
    packed = pack(rollouts, rows_of(rollouts, [0, 1]), trainer.device)
    weight = torch.linspace(-1, 1, len(packed.targets))
    (weight * by_autograd(there, packed)).sum().backward()  # type: ignore[no-untyped-call]
    of_autograd = {name: one.grad for name, one in adapters_of(there.model).items() if one.grad is not None}
    check_gradients(trainer, packed, weight, of_autograd)


@pytest.mark.parametrize(
    "name", ["Gemma 3, text", "XGLM", *(pytest.param(name, marks=pytest.mark.slow) for name in MERGED_TOO)]
)
def test_merged_and_in_peft_it_is_what_was_trained(name: str, pair: Pair, tmp_path: Path) -> None:
    [architecture] = [one for one in ARCHITECTURES if one.name == name]
    changes = {"hidden_size": 72}  # whose square root bfloat16 rounds to 8.5
    both = pair(replace(architecture, changes={**architecture.changes, **changes}))
    assert both is not None
    trainer, there = both
    expected = logits(trainer.model).log_softmax(-1)
    merged = tmp_path / "merged"
    trainer.model.config.save_pretrained(merged)
    save_file(dict(merged_weights(trainer.model, torch.float32)), merged / "model.safetensors", {"format": "pt"})
    save_base(trainer, tmp_path / "base", torch.bfloat16)
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base", dtype=torch.float32)
    model: Any
    for model in (
        there.model,
        AutoModelForCausalLM.from_pretrained(merged, dtype=torch.float32),
        PeftModel.from_pretrained(base, str(tmp_path / "adapters")),
    ):
        gap = (logits(model).log_softmax(-1) - expected).abs().max()
        assert gap < 2e-6 * expected.abs().max()  # rounding of float32


class OwnTable(nn.Embedding):
    """Of a class that is not known, so that it is given no weights narrower than what it makes."""


def test_a_weight_of_two_modules_of_which_one_cannot_have_it_narrow_is_widened(
    build_small: Callable[..., PreTrainedModel],
) -> None:
    expected, model = build_small("qwen3"), build_small("qwen3").bfloat16()
    for parameter in expected.parameters():
        parameter.data = parameter.data.bfloat16().float()
    table = model.get_input_embeddings()
    table.__class__ = OwnTable
    compute_in(model, torch.float32)
    assert model.get_output_embeddings().weight is table.weight
    assert (logits(model) - logits(expected)).abs().max() < 1e-5
