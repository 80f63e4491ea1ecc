"""LoRA on every architecture that is taken: sampler, learner and plain forward pass agree, on the trainer and on a
generator, and with the model that adapters were merged into; gradients are those of autograd."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from rl.config import PolicyConfig
from rl.learning.logprobs import token_scores
from rl.learning.packing import Packed, pack, rows_of
from rl.loading.parity import measure
from rl.loading.policy import load_policy
from rl.lora_config import LoraConfig
from rl.model.lora import adapters_of, merged_weights
from rl.model.policy import Policy, UnknownModelError, save_policy
from tests.bench.architectures import Architecture, build
from tests.rl.architectures import each_of
from tests.rl.learning.test_packing import Make, filled
from tests.rl.loading.test_architectures import by_autograd
from tests.rl.saved import saved

TEXT = torch.arange(5, 25)[None]


def config(**lora: object) -> PolicyConfig:
    return PolicyConfig(device="cpu", lora=LoraConfig.model_validate({"rank": 4, **lora}))


def trained(policy: Policy) -> Policy:
    """As after some updates: B is not 0 any more."""
    source = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, value in adapters_of(policy.model).items():
            if ".lora_B." in name:
                value.normal_(0, 0.05, generator=source)
    return policy


@torch.no_grad()
def logits(model: PreTrainedModel) -> Tensor:
    found: Tensor = model(input_ids=TEXT, use_cache=False).logits
    return found.float()


def gradients(policy: Policy) -> dict[str, Tensor]:
    assert not any(p.grad is not None for p in policy.model.parameters() if not p.requires_grad)
    found = {name: p.grad.clone() for name, p in adapters_of(policy.model).items() if p.grad is not None}
    policy.model.zero_grad(set_to_none=True)
    return found


def check_gradients(trainer: Policy, packed: Packed, weight: Tensor, expected: dict[str, Tensor]) -> None:
    """Those of the adapters for the loss sum(weight * log-prob), with checkpointing and without."""
    assert expected
    for checkpointing in (False, True):
        loss = lambda logprobs, part: (weight[part] * logprobs).sum()  # noqa: E731
        token_scores(trainer, packed, 1.0, loss, checkpointing=checkpointing)
        found = gradients(trainer)
        for name, gradient in expected.items():
            assert (found[name] - gradient).norm() <= 1e-5 * gradient.norm() + 1e-6, name


@pytest.fixture(scope="module")
def folder(
    tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Architecture], str]:
    return lambda of: saved(tmp_path_factory.mktemp("model"), build(of, len(tokenizer)), tokenizer)


@pytest.mark.slow
@pytest.mark.usefixtures("several_chunks")
@each_of()
def test_adapters_agree_everywhere_or_the_model_is_refused_as_without(
    architecture: Architecture, folder: Callable[[Architecture], str], tmp_path: Path, make_rollouts: Make
) -> None:
    path = folder(architecture)
    try:
        load_policy(path, PolicyConfig(device="cpu"), master=True)
    except UnknownModelError:
        with pytest.raises(UnknownModelError):
            load_policy(path, config(), master=True)
        return
    trainer = trained(load_policy(path, config(), master=True))
    assert measure(trainer).gap < 1e-4
    save_policy(trainer, tmp_path / "adapters")
    there = load_policy(path, config(), adapters=tmp_path / "adapters")
    expected = logits(trainer.model)
    assert (logits(there.model) - expected).abs().max() <= 1e-5
    plain = logits(AutoModelForCausalLM.from_pretrained(path))
    assert (expected - plain).abs().max() > 0.05  # they make a difference
    whole = AutoModelForCausalLM.from_pretrained(path)
    assert not whole.load_state_dict(dict(merged_weights(trainer.model, torch.float32)), strict=False).unexpected_keys
    assert (logits(whole) - expected).abs().max() < 2e-4 * expected.abs().max()

    rollouts = filled(make_rollouts, [(2, [3, 1, 5]), (6, [2, 4, 3])])
    packed = pack(rollouts, rows_of(rollouts, [0, 1]), trainer.device)
    weight = torch.linspace(-1, 1, len(packed.targets))
    (weight * by_autograd(trainer, packed)).sum().backward()
    of_autograd = gradients(trainer)
    check_gradients(trainer, packed, weight, of_autograd)
