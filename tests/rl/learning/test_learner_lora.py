"""Learning with adapters on a frozen model."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from rl.config import PolicyConfig, SamplingConfig
from rl.learning.learner import Learner
from rl.learning.logprobs import token_scores
from rl.learning.optimizer_config import OptimizerConfig
from rl.learning.packing import pack, rows_of
from rl.loading.policy import load_policy
from rl.lora_config import LoraConfig, OtherBaseError
from rl.model.activations import kept_of_row
from rl.model.lora import adapters_of, draw_adapters
from rl.model.policy import Policy, UnknownModelError, save_policy
from rl.records import Batch, Problem
from rl.sampling.sampler import sample
from tests.rl.loading.test_lora_architectures import TEXT, config, logits, trained
from tests.rl.saved import Build, saved
from tests.rl.updates import PLAIN, REINFORCE, gradient_of, identical, moments, weights

Alone = Callable[..., Tensor]


@pytest.fixture
def path(build_small: Build, tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> str:
    return saved(tmp_path / "whole", build_small("llama"), tokenizer)


def delta(learner: Learner, name: str) -> tuple[Tensor, Tensor]:
    """A and B of a layer in float64."""
    found = adapters_of(learner.policy.model)
    return tuple(found[f"base_model.model.{name}.lora_{end}.weight"].detach().double() for end in "AB")  # type: ignore[return-value]


@pytest.mark.parametrize("checkpointing", ["on", "off"])
def test_the_gradient_is_that_of_the_product_in_float64(
    checkpointing: str, path: str, drawn: Callable[..., Batch], alone: Alone
) -> None:
    policy = trained(load_policy(path, config(alpha=8), master=True))
    batch = drawn(policy)
    learner = Learner(policy, PLAIN.model_copy(update={"checkpointing": checkpointing}))
    found = dict(zip(adapters_of(policy.model), gradient_of(learner, batch), strict=True))
    learner = Learner(trained(load_policy(path, config(alpha=8), master=True)), PLAIN)  # before the update
    whole = AutoModelForCausalLM.from_pretrained(path).double()
    layers = {name: module for name, module in whole.named_modules() if type(module) is torch.nn.Linear}
    del layers["lm_head"]
    factors = {name: tuple(one.requires_grad_() for one in delta(learner, name)) for name in layers}
    for name, (a, b) in factors.items():
        weight = layers[name].weight.detach()
        del layers[name].weight
        layers[name].weight = weight + 2.0 * b @ a  # alpha / rank

    rollouts = batch.rollouts
    used = [0, 2]  # the group between them does not vary
    total = int(rollouts.lengths[used].sum())
    loss = torch.zeros((), dtype=torch.float64)
    for group in used:
        advantages = batch.rewards[group] - batch.rewards[group].mean()
        for one, advantage in enumerate(advantages):
            completion = rollouts.tokens[group, one, : rollouts.lengths[group, one]]
            loss = loss - float(advantage) * alone(whole, rollouts.prompts[group], completion).sum() / total
    loss.backward()  # type: ignore[no-untyped-call]
    for name, (a, b) in factors.items():
        for end, exact in (("A", a.grad), ("B", b.grad)):
            gradient = found[f"base_model.model.{name}.lora_{end}.weight"]
            assert exact is not None
            assert exact.norm() > 0
            assert (gradient - exact).norm() <= 1e-4 * exact.norm(), (name, end)


def test_only_adapters_are_trained_saved_and_published(path: str, tmp_path: Path, drawn: Callable[..., Batch]) -> None:
    policy = load_policy(path, config(), master=True)
    learner = Learner(policy, PLAIN)
    before = weights(learner)
    learner.update(drawn(policy), REINFORCE, 1.0)
    after = weights(learner)
    changed = {name for name in after if not torch.equal(before[name], after[name])}
    assert changed == {name for name in after if ".lora_B." in name}  # of A the gradient is 0 while B is
    published = policy.weights()
    assert len(published) == 2 * 7 * 2  # A and B, seven layers, two blocks
    learner.save(tmp_path / "saved")
    assert load_file(tmp_path / "saved" / "adapter_model.safetensors").keys() == published.keys()
    assert not (tmp_path / "saved" / "model.safetensors").exists()
    kept = sum(value.nbytes for value in load_file(tmp_path / "saved" / "optimizer.safetensors").values())
    assert kept < 2.2 * sum(value.nbytes for value in published.values()) + 6000  # two moments, the random state
    assert learner.standing < 3 * sum(value.nbytes for value in published.values())


@pytest.mark.parametrize("base", ["float32", "bfloat16"])
def test_a_restored_learner_goes_on_bit_for_bit(
    base: str, path: str, tmp_path: Path, drawn: Callable[..., Batch]
) -> None:
    policy = load_policy(path, config(base=base), master=True)
    optimizer = OptimizerConfig(lr=1e-2, warmup_steps=0)
    learner = Learner(policy, optimizer)
    for step in range(2):
        learner.update(drawn(policy, step=step), REINFORCE, 1.0)
    learner.save(tmp_path / "saved")
    other = load_policy(path, config(), master=True, adapters=tmp_path / "saved")
    assert other.base == policy.base  # the type of the base is as it was trained, whatever is configured now
    again = Learner(other, optimizer)
    again.restore(tmp_path / "saved")
    assert again.step == 2
    assert identical(weights(again), weights(learner))
    batch = drawn(policy, step=2)
    for one in (learner, again):
        one.update(batch, REINFORCE, 1.0)
    assert identical(weights(again), weights(learner))
    assert identical(moments(again), moments(learner))


@pytest.mark.parametrize(
    ("dtype", "base", "worst"),
    [
        ("float32", "float32", 1e-5),
        ("float32", "bfloat16", 1e-5),
        ("bfloat16", "auto", 0.3),
        ("bfloat16", "float32", 0.3),
    ],
)
def test_a_generator_s_log_probs_are_the_trainer_s(
    dtype: str, base: str, worst: float, path: str, tmp_path: Path, problems: list[Problem]
) -> None:
    given = PolicyConfig(device="cpu", dtype=dtype, lora=LoraConfig(rank=4, base=base))
    trainer = trained(load_policy(path, given, master=True))
    save_policy(trainer, tmp_path / "adapters")
    generator = load_policy(path, given, adapters=tmp_path / "adapters")
    assert {p.dtype for p in generator.model.parameters()} == {generator.dtype}
    rollouts = sample(
        generator, 0, problems, SamplingConfig(max_tokens=8), samples=4, seed=0, step=0, groups=range(len(problems))
    )
    packed = pack(rollouts, rows_of(rollouts, range(len(problems))), trainer.device)
    learned, _ = token_scores(trainer, packed, 1.0)
    behaviour = torch.from_numpy(rollouts.logprobs)[packed.group, packed.sample, packed.token_index]
    assert (learned - behaviour).abs().max() < worst
    if dtype == "bfloat16":
        assert (learned - behaviour).abs().mean() < 0.03


def test_peft_loads_what_is_saved(path: str, tmp_path: Path) -> None:
    policy = trained(load_policy(path, config(targets=("q_proj", "down_proj")), master=True))
    assert len(policy.weights()) == 2 * 2 * 2
    save_policy(policy, tmp_path / "adapters")
    whole = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(path), str(tmp_path / "adapters"))
    with torch.no_grad():
        assert torch.allclose(whole(input_ids=TEXT).logits, logits(policy.model), atol=1e-6)
    assert len(AutoTokenizer.from_pretrained(tmp_path / "adapters")) == len(policy.tokenizer)
    by_name = AutoModelForCausalLM.from_pretrained(tmp_path / "adapters")  # transformers finds the base by its name
    assert torch.allclose(logits(by_name), logits(policy.model), atol=1e-6)
    settings = json.loads((tmp_path / "adapters" / "adapter_config.json").read_bytes())
    assert settings["target_modules"] == ["down_proj", "q_proj"]  # in the same order in every process


def test_fresh_adapters_change_nothing_and_are_the_same_for_the_same_seed(path: str) -> None:
    one, other = (load_policy(path, config(), master=True) for _ in range(2))
    assert torch.equal(logits(one.model), logits(AutoModelForCausalLM.from_pretrained(path)))
    draw_adapters(one.model, 7)
    assert not identical(one.weights(), other.weights())
    draw_adapters(other.model, 7)
    assert identical(one.weights(), other.weights())
    bound = 1 / 32**0.5  # of a uniform distribution of variance 1 / (3 * 32), by a = sqrt(5)
    [a, *_] = one.weights().values()
    assert a.shape == (4, 32)
    assert 0.8 * bound < a.abs().max() <= bound


def test_another_base_is_refused(
    path: str, tmp_path: Path, build_small: Build, tokenizer: PreTrainedTokenizerBase
) -> None:
    save_policy(load_policy(path, config(), master=True), tmp_path / "adapters")
    other = saved(tmp_path / "other", build_small("llama", seed=1), tokenizer)
    with pytest.raises(OtherBaseError, match="another than the one that the adapters were trained on"):
        load_policy(other, config(), adapters=tmp_path / "adapters")


def test_a_model_with_adapters_of_its_own_is_refused(path: str, tmp_path: Path) -> None:
    save_policy(load_policy(path, config(), master=True), tmp_path / "adapters")
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (Path(path) / name).write_bytes((tmp_path / "adapters" / name).read_bytes())
    with pytest.raises(UnknownModelError, match="has adapters of its own"):
        load_policy(path, PolicyConfig(device="cpu"))


def test_targets_that_are_not_there_are_named(path: str) -> None:
    with pytest.raises(
        UnknownModelError, match=r"no linear layer 'qkv' can have an adapter; there are down_proj, gate_proj"
    ):
        load_policy(path, config(targets=("q_proj", "qkv")))
    given = PolicyConfig(device="cpu", dtype="auto", lora=LoraConfig(rank=1, base="float16"))
    with pytest.raises(
        UnknownModelError, match=r"^policy\.lora\.base float16: does not go with arithmetic in torch\.bfloat16"
    ):
        load_policy(path, given.model_copy(update={"dtype": "bfloat16"}))  # as auto may come out on a machine


def test_weights_of_another_model_do_not_fit(path: str) -> None:
    policy: Policy = load_policy(path, config())
    with pytest.raises(ValueError, match="does not fit the model in memory"):
        policy.load_weights({"model.embed_tokens.weight": torch.zeros(1)})
    [first, *_] = policy.weights()
    with pytest.raises(ValueError, match="no weights for"):
        policy.load_weights({first: policy.weights()[first]})
    assert replace(policy, base=None).weights().keys() > {"model.embed_tokens.weight"}


def test_of_a_wide_base_a_pass_keeps_no_wider_activations_for_adapters(path: str) -> None:
    """Autocast would only narrow them again."""
    given = config(base="float32").model_copy(update={"dtype": "bfloat16"})
    policy = load_policy(path, given, master=True, check=False)
    kept = kept_of_row(policy, 16)
    for module in policy.model.modules():
        if isinstance(module, LoraLayer):
            module.cast_input_dtype_enabled = True
    assert kept < kept_of_row(policy, 16)
