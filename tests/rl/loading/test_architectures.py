"""The gradient of an update, of every architecture that is taken, by every way in which memory is saved."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.learner import Learner
from rl.learning.logprobs import token_scores
from rl.learning.optimizer_config import OptimizerConfig
from rl.learning.packing import Packed, pack, rows_of
from rl.loading.parity import UnknownModelError, require_parity
from rl.model.blocks import block_refusal
from rl.model.head import attention_of, head_logits, hidden_states, shared_mask
from rl.model.policy import Policy
from rl.model.tolerances import needs_no_mask
from tests.bench.architectures import Architecture, build
from tests.rl.architectures import REFUSED, each_of
from tests.rl.learning.test_packing import Make, filled
from tests.rl.updates import Judged

WITHOUT_BLOCKS = {"GPT-2", "GPT-J", "CodeGen", "Falcon", "XGLM", "Gemma 2", "gpt-oss"}  # attention of another kind
# some of it is computed in float32 whatever the type of the model: norms, rotation, products of experts
FLOAT32 = {
    "Cohere (Command R)",
    "Cohere 2",
    "DeepSeek-V2",
    "DeepSeek-V3",
    "ERNIE 4.5 MoE",
    "GLM-4.5 (MoE)",
    "Gemma",
    "Gemma 3, text",
    "Gemma 3, with vision",
    "Gemma 3n, text",
    "Gemma 4, text",
    "GraniteMoE",
    "Helium",
    "MiniMax-M2",
    "Mixtral",
    "OLMoE",
    "PhiMoE",
    "Qwen2-MoE",
    "Qwen3-MoE",
    "XGLM",
    "dots.llm1",
    "gpt-oss",
}


def by_autograd(policy: Policy, packed: Packed) -> Tensor:
    """[N] log-probs."""
    states = hidden_states(
        policy.model, mask=packed.mask, input_ids=packed.tokens, position_ids=packed.positions, use_cache=False
    )
    logits = head_logits(policy.model, states[packed.rows, packed.logit_positions])
    return logits.log_softmax(-1).gather(1, packed.targets[:, None]).squeeze(1)


def gradients(policy: Policy) -> dict[str, Tensor]:
    found = {name: p.grad.clone() for name, p in policy.model.named_parameters() if p.grad is not None}
    policy.model.zero_grad(set_to_none=True)
    return found


def check(policy: Policy, ways: Sequence[Packed], weight: Tensor, expected: Mapping[str, Tensor], apart: float) -> None:
    """That each way makes the expected gradient, with checkpointing and without."""
    for way, checkpointing in itertools.product(ways, (False, True)):
        loss = lambda logprobs, part: (weight[part] * logprobs).sum()  # noqa: E731
        token_scores(policy, way, 1.0, loss, checkpointing=checkpointing)
        found = gradients(policy)
        for name, gradient in expected.items():
            assert (found[name] - gradient).norm() <= apart * (gradient.norm() + 1), name
        assert not any(found[name].any() for name in found.keys() - expected.keys())


@pytest.mark.usefixtures("flex_backward", "several_chunks")
@each_of()
def test_the_gradient_of_the_learner_is_that_of_autograd(
    architecture: Architecture,
    tokenizer: PreTrainedTokenizerBase,
    make_rollouts: Make,
    judged: Judged,
) -> None:
    here = torch.device("cpu")
    try:
        require_parity(Policy(build(architecture, len(tokenizer)), tokenizer, here, torch.float32), architecture.name)
    except UnknownModelError:
        assert architecture.name in REFUSED
        return  # it is never trained
    assert architecture.name not in REFUSED
    dtype, apart = (torch.float32, 2e-5) if architecture.name in FLOAT32 else (torch.float64, 1e-9)
    policy = Policy(build(architecture, len(tokenizer)).to(dtype), tokenizer, here, dtype)
    rollouts = filled(make_rollouts, [(2, [3, 1, 5]), (6, [2, 4, 3])])
    packed, in_blocks = (
        pack(rollouts, rows_of(rollouts, [0, 1]), policy.device, blocks=blocks) for blocks in (False, True)
    )
    for each in (packed, in_blocks):
        each.tokens.remainder_(len(tokenizer))
        each.targets.remainder_(len(tokenizer))
    weight = torch.linspace(-1, 1, len(packed.targets), dtype=dtype)
    (weight * by_autograd(policy, packed)).sum().backward()
    expected = gradients(policy)
    assert expected
    refused = block_refusal(policy)
    assert bool(refused) is (architecture.name in WITHOUT_BLOCKS), refused
    assert isinstance(packed.mask, Tensor)
    shared = replace(packed, mask=shared_mask(policy.model, packed.mask, dtype))
    ways = [packed, shared] if refused else [packed, shared, in_blocks]
    check(policy, ways, weight, expected, apart)

    single, without = (
        pack(rollouts, rows_of(rollouts, [0, 1], positions=1), policy.device, causal=causal) for causal in (False, True)
    )
    for each in (single, without):
        each.tokens.remainder_(len(tokenizer))
        each.targets.remainder_(len(tokenizer))
    assert without.mask is None
    assert needs_no_mask(policy) is (attention_of(policy.model) == "sdpa")
    if needs_no_mask(policy):  # rotation in float32 is another by rounding, in rows of another length
        (weight * by_autograd(policy, single)).sum().backward()
        check(policy, [without], weight, gradients(policy), apart)
    batch = judged(rollouts, [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    learned = Learner(policy, OptimizerConfig(lr=1e-3)).update(batch, AlgorithmSpec(), 1.0)
    assert learned.applied
    assert learned.metrics["policy/grad_norm"] > 0
