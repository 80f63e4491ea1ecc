"""The lean decoder beside transformers' own, for whole sequences of several rows."""

from collections.abc import Callable

import pytest
import torch
from torch import nn
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerBase,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from rl.lora_config import LoraConfig
from rl.model import lean
from rl.model.lean import Kernels, LeanDecoder
from rl.model.lora import add_adapters
from rl.model.narrow import compute_in
from rl.model.policy import Policy
from rl.sampling.engine import Engine
from rl.sampling.sampler import uniforms
from rl.sampling.scheduling import Draw
from rl.sampling.slots import Slots

PROMPTS = ([5], [7, 90, 300, 17], [3, 4, 5, 6, 7, 8, 9])
LIMIT = 12
SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "initializer_range": 0.15,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
KINDS = {
    "llama": lambda size: LlamaForCausalLM(LlamaConfig(vocab_size=size, **SIZES)),
    "llama with scaled rotation": lambda size: LlamaForCausalLM(
        LlamaConfig(vocab_size=size, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}, **SIZES)
    ),
    "qwen2": lambda size: Qwen2ForCausalLM(Qwen2Config(vocab_size=size, **SIZES)),
    "qwen3": lambda size: Qwen3ForCausalLM(Qwen3Config(vocab_size=size, head_dim=16, **SIZES)),
}


def made(name: str, tokenizer: PreTrainedTokenizerBase) -> Policy:
    torch.manual_seed(0)
    model = KINDS[name](len(tokenizer)).eval()
    for parameter in model.parameters():  # norms and biases too: ones and zeros hide mistakes
        if parameter.ndim == 1:
            nn.init.uniform_(parameter, 0.5, 1.5)
    return Policy(model, tokenizer, torch.device("cpu"), torch.float32)


def drawn(policy: Policy, slots: Slots) -> list[Draw]:
    engine = Engine(policy, slots)
    noise = uniforms(0, 0, range(3), 4, LIMIT)
    draws = [engine.add(PROMPTS[row // 4], LIMIT - row % 3, noise[row, : LIMIT - row % 3]) for row in range(12)]
    while engine.busy:
        engine.step()
    return draws


def differ(one: list[Draw], other: list[Draw]) -> float:
    """The largest distance of log-probs, as long as tokens are the same."""
    assert [draw.tokens.tolist() for draw in one] == [draw.tokens.tolist() for draw in other]
    return max(float(abs(a.logprobs - b.logprobs).max()) for a, b in zip(one, other, strict=True))


@pytest.fixture(params=["copied", "its own"])
def matrices(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of the decoder: together, as a small model's are, or as they are, as a large one's are on a GPU."""
    if request.param == "its own":
        monkeypatch.setattr(lean, "LARGEST", 0)
        monkeypatch.setattr(LeanDecoder, "takes", lambda _: True)


@pytest.mark.usefixtures("matrices")
@pytest.mark.parametrize("name", KINDS)
def test_it_draws_what_transformers_decoder_draws(name: str, tokenizer: PreTrainedTokenizerBase) -> None:
    policy = made(name, tokenizer)
    slots = Slots(policy, most=7)
    assert slots.backend.lean is not None
    found = drawn(policy, slots)
    slots.backend.lean = None
    assert differ(found, drawn(policy, slots)) < 1e-5


@pytest.mark.usefixtures("matrices")
@pytest.mark.parametrize("how", ["loaded", "replaced", "one written to", "the head"])
def test_weights_that_change_are_followed_at_once(how: str, tokenizer: PreTrainedTokenizerBase) -> None:
    policy = made("qwen3", tokenizer)
    slots = Slots(policy)
    drawn(policy, slots)
    torch.manual_seed(1)
    match how:
        case "loaded":
            policy.load_weights(
                {name: value + 0.05 * torch.randn_like(value) for name, value in policy.weights().items()}
            )
        case "replaced":
            projection = policy.model.model.layers[1].self_attn.k_proj
            projection.weight = nn.Parameter(projection.weight + 0.1)
        case "the head":
            with torch.no_grad():
                policy.model.lm_head.weight.mul_(1.1)
        case _:
            with torch.no_grad():
                policy.model.model.layers[0].mlp.up_proj.weight.add_(0.1)
    plain = Slots(policy)
    plain.backend.lean = None
    assert differ(drawn(policy, slots), drawn(policy, plain)) < 1e-5


def test_weights_that_change_between_two_tokens_are_followed_from_the_next_on(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    found = []
    for whole in (False, True):
        policy = made("qwen3", tokenizer)
        slots = Slots(policy)
        if whole:
            slots.backend.lean = None
        engine = Engine(policy, slots)
        draw = engine.add([5, 6], LIMIT, uniforms(0, 0, [0], 1, LIMIT)[0])
        for step in range(LIMIT):
            if step == 4:
                policy.load_weights({name: 1.1 * value for name, value in policy.weights().items()})
            engine.step()
        found.append(draw)
    assert differ(found[:1], found[1:]) < 1e-5


@pytest.mark.parametrize("name", KINDS)
def test_a_decoder_whose_attention_is_wrong_is_not_taken(
    name: str, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    made_right = LeanDecoder.__init__

    def made_wrong(decoder: LeanDecoder, model: PreTrainedModel, kernels: Kernels | None = None) -> None:
        made_right(decoder, model, kernels)
        decoder._scaling *= 10

    policy = made(name, tokenizer)
    assert Slots(policy).backend.lean is not None
    monkeypatch.setattr(LeanDecoder, "__init__", made_wrong)
    assert Slots(policy).backend.lean is None


def test_on_a_cpu_only_small_models_of_the_very_kinds_are_taken(
    build_small: Callable[..., PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert LeanDecoder.takes(build_small("qwen3"))
    assert not LeanDecoder.takes(build_small("gpt2"))
    assert not LeanDecoder.takes(build_small("qwen3", hidden_act="gelu"))
    assert not LeanDecoder.takes(build_small("llama", mlp_bias=True))
    assert not LeanDecoder.takes(build_small("llama", attention_bias=True))
    wrapped = build_small("qwen3")
    wrapped.model.layers[1].mlp.down_proj = nn.Sequential(wrapped.model.layers[1].mlp.down_proj)
    assert not LeanDecoder.takes(wrapped)
    monkeypatch.setattr(lean, "LARGEST", 1000)
    assert not LeanDecoder.takes(build_small("qwen3"))


@pytest.mark.parametrize("target", ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "down_proj"])
def test_a_layer_with_adapters_is_not_taken(target: str, tokenizer: PreTrainedTokenizerBase) -> None:
    model = made("qwen3", tokenizer).model
    assert LeanDecoder.takes(model)
    add_adapters(model, LoraConfig(rank=2, targets=(target,)), torch.float32, torch.float32)
    assert not LeanDecoder.takes(model)


def test_weights_that_are_narrower_than_the_arithmetic_are_not_taken(tokenizer: PreTrainedTokenizerBase) -> None:
    model = made("qwen3", tokenizer).model.to(torch.bfloat16)
    assert LeanDecoder.takes(model)
    compute_in(model, torch.float32)
    assert not LeanDecoder.takes(model)
