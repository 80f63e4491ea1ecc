"""The gradient of an update, of every architecture that is taken, by every way in which memory is saved."""

import itertools

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
from rl.model.blocks import refusal
from rl.model.head import head_logits, hidden_states
from rl.model.policy import Policy
from tests.bench.architectures import Architecture, build
from tests.rl.architectures import each_of
from tests.rl.learning.test_packing import Make, filled
from tests.rl.updates import Judged

WITHOUT_BLOCKS = {"GPT-2", "GPT-J", "CodeGen", "Falcon", "XGLM", "Gemma 2", "gpt-oss"}  # attention of another kind


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


@pytest.mark.usefixtures("flex_backward")
@each_of()
def test_the_gradient_of_the_learner_is_that_of_autograd(
    architecture: Architecture,
    tokenizer: PreTrainedTokenizerBase,
    make_rollouts: Make,
    judged: Judged,
) -> None:
    policy = Policy(build(architecture, len(tokenizer)).double(), tokenizer, torch.device("cpu"), torch.float64)
    try:
        require_parity(policy, architecture.name)
    except UnknownModelError:
        return  # it is never trained
    rollouts = filled(make_rollouts, [(2, [3, 1, 5]), (6, [2, 4, 3])])
    packed, in_blocks = (
        pack(rollouts, rows_of(rollouts, [0, 1]), policy.device, blocks=blocks) for blocks in (False, True)
    )
    for each in (packed, in_blocks):
        each.tokens.remainder_(len(tokenizer))
        each.targets.remainder_(len(tokenizer))
    weight = torch.linspace(-1, 1, len(packed.targets))
    (weight * by_autograd(policy, packed)).sum().backward()
    expected = gradients(policy)
    assert expected
    refused = refusal(policy)
    assert bool(refused) is (architecture.name in WITHOUT_BLOCKS), refused
    ways = [packed] if refused else [packed, in_blocks]
    for way, checkpointing in itertools.product(ways, (False, True)):
        token_scores(
            policy,
            way,
            1.0,
            lambda logprobs, part: (weight[part] * logprobs).sum(),
            checkpointing=checkpointing,
        )
        found = gradients(policy)
        for name, gradient in expected.items():
            assert (found[name] - gradient).norm() <= 1e-9 * gradient.norm() + 1e-9, name
        assert not any(found[name].any() for name in found.keys() - expected.keys())
    batch = judged(rollouts, [[0.0, 1.0, 0.0], [1.0, 0.0, 1.0]])
    learned = Learner(policy, OptimizerConfig(lr=1e-3)).update(batch, AlgorithmSpec(), 1.0)
    assert learned.applied
    assert learned.metrics["policy/grad_norm"] > 0
