from collections.abc import Callable

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from rl.learning.learner import Learner
from rl.learning.optimizer_config import OptimizerConfig
from rl.learning.supervised import demonstrations, imitate
from rl.model.policy import Policy
from rl.problems.made.grammar import stream
from rl.problems.shown import Shown
from rl.problems.shown import shown as demonstrated
from rl.records import Problem
from tests.streams import drawing

draw = drawing(stream)

Make = Callable[..., Policy]


def targets(problems: list[Problem]) -> list[Shown]:
    return [Shown.target(problem) for problem in problems]


@pytest.fixture(scope="module")
def shown() -> list[Problem]:
    return draw(0, 0, 12)


def test_a_demonstration_is_the_target_and_the_end_token(make_policy: Make, shown: list[Problem]) -> None:
    policy = make_policy()
    rollouts = demonstrations(policy, targets(shown))
    assert rollouts.tokens.shape == (12, 1, rollouts.lengths.max())
    for p, problem in enumerate(shown):
        length = rollouts.lengths[p, 0]
        assert rollouts.prompts[p].tolist() == policy.prompt_tokens(problem.prompt)
        assert policy.tokenizer.decode(rollouts.tokens[p, 0, : length - 1]) == problem.target
        assert rollouts.tokens[p, 0, length - 1] == policy.end
        assert not rollouts.tokens[p, 0, length:].any()
        assert rollouts.texts[p] == (problem.target,)
    assert rollouts.ended.all()


@pytest.mark.parametrize("microbatch_tokens", [1, 100_000])
@pytest.mark.parametrize("name", ["qwen3", "llama", "gpt2"])
def test_the_loss_is_the_one_that_transformers_computes_from_labels(
    name: str,
    microbatch_tokens: int,
    make_policy: Make,
    shown: list[Problem],
    exactly: Callable[[PreTrainedModel], PreTrainedModel],
) -> None:
    policy = make_policy(name)
    rollouts, reference = demonstrations(policy, targets(shown)), exactly(policy.model)
    total = 0.0
    for p, prompt in enumerate(rollouts.prompts):
        length = int(rollouts.lengths[p, 0])
        ids = torch.tensor([[*prompt.tolist(), *rollouts.tokens[p, 0, :length].tolist()]])
        labels = ids.clone()
        labels[:, : len(prompt)] = -100
        with torch.no_grad():
            total += float(reference(input_ids=ids, labels=labels).loss) * length
    learner = Learner(policy, OptimizerConfig(lr=3e-4, microbatch_tokens=microbatch_tokens))
    assert imitate(learner, rollouts) == pytest.approx(total / int(np.sum(rollouts.lengths)), rel=1e-5)


def test_imitating_lowers_the_loss(make_policy: Make, shown: list[Problem]) -> None:
    learner = Learner(make_policy(), OptimizerConfig(lr=5e-3, warmup_steps=0))
    rollouts = demonstrations(learner.policy, targets(shown))
    losses = [imitate(learner, rollouts) for _ in range(25)]
    assert losses[-1] < 0.5 * losses[0]
    assert learner.optimizer_steps == 25
    assert learner.step == 0  # the version counts updates by reinforcement


def test_a_scale_of_zero_changes_no_weight(make_policy: Make, shown: list[Problem]) -> None:
    learner = Learner(make_policy(), OptimizerConfig(lr=3e-4))
    before = [parameter.detach().clone() for parameter in learner.parameters]
    imitate(learner, demonstrations(learner.policy, targets(shown)), scale=0.0)
    assert all(torch.equal(one, other) for one, other in zip(before, learner.parameters, strict=True))


def test_of_several_turns_only_what_the_policy_says_is_learned(
    make_policy: Make, exactly: Callable[[PreTrainedModel], PreTrainedModel]
) -> None:
    policy = make_policy()
    some = demonstrated("guess", 0, 0, 5)
    rollouts, reference = demonstrations(policy, some), exactly(policy.model)
    total, count = 0.0, 0
    for p, each in enumerate(some):
        ids, learned = policy.prompt_tokens(each.problem.prompt), [False] * len(rollouts.prompts[p])
        for number, (said, observed) in enumerate(each.turns, 1):
            own = [*policy.tokenizer(said)["input_ids"], policy.end]
            behind = policy.tokenizer(f"{observed}\n")["input_ids"] if number < len(each.turns) else []
            ids += own + behind
            learned += [True] * len(own) + [False] * len(behind)
        written = rollouts.tokens[p, 0, : rollouts.lengths[p, 0]]
        assert [*rollouts.prompts[p].tolist(), *written.tolist()] == ids
        labels = torch.tensor([ids]).masked_fill(~torch.tensor([learned]), -100)
        with torch.no_grad():
            total += float(reference(input_ids=torch.tensor([ids]), labels=labels).loss) * sum(learned)
        count += sum(learned)
    learner = Learner(policy, OptimizerConfig(lr=3e-4))
    assert imitate(learner, rollouts) == pytest.approx(total / count, rel=1e-5)
