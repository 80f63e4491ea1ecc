"""What transformers keeps in float32 in a model of a narrower type is not rounded on its way to others."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from infra.weights.difference import apply_difference, weights_digest, write_difference
from infra.weights.quantization import restored
from infra.weights.version import PolicyVersion
from infra.weights.whole import describe, read_whole, write_whole
from rl.config import PolicyConfig
from rl.loading.policy import load_policy
from rl.lora_config import LoraConfig
from rl.model.lora import merged_weights
from rl.model.policy import save_policy
from rl.model.tiny import build_tokenizer
from tasks.calls.published import as_published, public_model
from tests.bench.architectures import ARCHITECTURES, build
from tests.rl.saved import saved

ROUTING = "e_score_correction_bias"
FINE = 1 + torch.tensor([1, 2, 3, 5]) / 1024  # bfloat16 has 1/128 there

each_router = pytest.mark.parametrize("name", ["DeepSeek-V3", "GLM-4.5 (MoE)"])


def narrow(lora: LoraConfig | None = None) -> PolicyConfig:
    return PolicyConfig(device="cpu", dtype="bfloat16", lora=lora or LoraConfig())


def biases(tensors: dict[str, Tensor]) -> list[Tensor]:
    found = [tensor for name, tensor in tensors.items() if name.endswith(ROUTING)]
    assert found
    return found


def require_fine(tensors: dict[str, Tensor], fine: Tensor = FINE) -> None:
    for bias in biases(tensors):
        assert bias.dtype == torch.float32
        assert torch.equal(bias, fine)


def written(name: str, folder: Path) -> str:
    [architecture] = [one for one in ARCHITECTURES if one.name == name]
    tokenizer = build_tokenizer()
    model: PreTrainedModel = build(architecture, len(tokenizer))
    for bias in biases(model.state_dict()):
        bias.copy_(FINE)
    return saved(folder, model, tokenizer)


@each_router
@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_a_generator_routes_as_the_trainer_does(name: str, dtype: str, tmp_path: Path) -> None:
    path = written(name, tmp_path / "source")
    trainer = load_policy(path, narrow(), master=True)
    first = as_published(trainer.weights(), dtype, trainer)
    require_fine(first)
    assert weights_digest(first) == weights_digest(public_model(path, narrow()).load(dtype))
    whole = describe(first, PolicyVersion(0, "v0", ""), None, 1.0, {})
    assert whole.dtype == dtype
    assert whole.bytes == sum(tensor.nbytes for tensor in first.values())
    write_whole(tmp_path, first)
    received = read_whole(tmp_path)
    assert weights_digest(received) == weights_digest(first)
    generator = load_policy(path, narrow(), weights=restored(received))
    require_fine(generator.model.state_dict())
    others = {value.dtype for key, value in generator.weights().items() if not key.endswith(ROUTING)}
    assert others == {torch.bfloat16}

    finer = FINE + 1 / 4096
    for bias in biases(trainer.weights()):
        bias.copy_(finer)
    second = as_published(trainer.weights(), dtype, trainer)
    write_difference(tmp_path / "difference", second, first)
    apply_difference(tmp_path / "difference", received, weights_digest(second), whole.bytes)
    generator.load_weights(restored(received))
    require_fine(generator.model.state_dict(), finer)


@each_router
def test_in_a_saved_model_it_is_as_it_was_trained(name: str, tmp_path: Path) -> None:
    trainer = load_policy(written(name, tmp_path / "source"), narrow(), master=True)
    save_policy(trainer, tmp_path / "result", torch.bfloat16)
    tensors = load_file(tmp_path / "result" / "model.safetensors")
    require_fine(tensors)
    assert {value.dtype for key, value in tensors.items() if not key.endswith(ROUTING)} == {torch.bfloat16}
    require_fine(AutoModelForCausalLM.from_pretrained(tmp_path / "result").state_dict())


@each_router
def test_in_a_merged_model_it_is_as_in_the_base(name: str, tmp_path: Path) -> None:
    lora = LoraConfig(rank=2, base="bfloat16")
    trainer = load_policy(written(name, tmp_path / "source"), narrow(lora), master=True)
    assert {value.dtype for value in as_published(trainer.weights(), "bfloat16", trainer).values()} == {torch.bfloat16}
    merged = dict(merged_weights(trainer.model, torch.bfloat16))
    require_fine(merged)
    assert {value.dtype for key, value in merged.items() if not key.endswith(ROUTING)} == {torch.bfloat16}
    (tmp_path / "merged").mkdir()
    save_file(merged, tmp_path / "merged" / "model.safetensors", {"format": "pt"})
    trainer.model.config.save_pretrained(tmp_path / "merged")
    require_fine(AutoModelForCausalLM.from_pretrained(tmp_path / "merged", dtype=torch.bfloat16).state_dict())


def test_a_generator_with_adapters_keeps_it_too(tmp_path: Path) -> None:
    [architecture] = [one for one in ARCHITECTURES if one.name == "ERNIE 4.5 MoE"]
    tokenizer = build_tokenizer()
    path = saved(tmp_path, build(architecture, len(tokenizer)), tokenizer)
    plain, adapted = (load_policy(path, narrow(lora)).model for lora in (None, LoraConfig(rank=2)))
    types = {name.replace(".base_layer.", "."): parameter.dtype for name, parameter in adapted.named_parameters()}
    assert types.items() >= {name: parameter.dtype for name, parameter in plain.named_parameters()}.items()
    assert set(types.values()) == {torch.float32, torch.bfloat16}
