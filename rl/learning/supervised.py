"""Supervised learning of a problem's own expression: the warm-up that gives a fresh policy something to reward."""

from collections.abc import Sequence

import numpy as np

from rl.learning.learner import Learner, loss_scale, token_scores
from rl.learning.packing import Packed
from rl.model.policy import Policy
from rl.records import Problem, Rollouts


def demonstrations(policy: Policy, problems: Sequence[Problem]) -> Rollouts:
    """The problems with their own targets as the one completion of each (G = 1)."""
    answers = [
        [*policy.tokenizer(problem.target, add_special_tokens=False)["input_ids"], policy.end] for problem in problems
    ]
    longest = max(map(len, answers))
    tokens = np.zeros((len(problems), 1, longest), dtype=np.int32)
    for row, answer in enumerate(answers):
        tokens[row, 0, : len(answer)] = answer
    return Rollouts(
        problems=tuple(problems),
        prompts=tuple(
            np.asarray(policy.prompt_tokens(problem.prompt, problem.instructions), dtype=np.int32)
            for problem in problems
        ),
        tokens=tokens,
        logprobs=np.zeros(tokens.shape, dtype=np.float32),
        versions=np.zeros_like(tokens),
        lengths=np.asarray([[len(answer)] for answer in answers], dtype=np.int32),
        ended=np.ones((len(problems), 1), dtype=np.bool_),
        texts=tuple((problem.target,) for problem in problems),
    )


def imitate(learner: Learner, shown: Rollouts, scale: float = 1.0) -> float:
    """One optimizer step on -mean log pi(target token), at ``scale`` times the learning rate; returns that loss in nats
    per token."""
    weight = 1.0 / shown.generated_tokens
    enlarged = loss_scale(learner.policy.dtype, shown.generated_tokens)

    def add(packed: Packed, checkpointing: bool) -> dict[str, float]:
        logprobs, _ = token_scores(
            learner.policy,
            packed,
            temperature=1.0,
            loss=lambda logprobs, _: -weight * enlarged * logprobs.sum(),
            checkpointing=checkpointing,
        )
        return {"loss": -weight * float(logprobs.sum())}

    sums, _ = learner.accumulation.add(shown, range(len(shown.problems)), add, learner.standing)
    learner.optimizer_step(scale, loss_scale=enlarged)
    return sums["loss"]
