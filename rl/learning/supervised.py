"""Supervised learning of a problem's own expression: the warm-up that gives a fresh policy something to reward."""

from collections.abc import Sequence

from rl.learning.learner import Learner
from rl.learning.logprobs import token_scores
from rl.learning.optimized import loss_scale
from rl.learning.packing import Packed
from rl.model.policy import Policy
from rl.records import Problem, Rollouts


def demonstrations(policy: Policy, problems: Sequence[Problem]) -> Rollouts:
    """The problems with their own targets as the one completion of each (G = 1)."""
    answers = [
        [*policy.tokenizer(problem.target, add_special_tokens=False)["input_ids"], policy.end] for problem in problems
    ]
    prompts = [policy.prompt_tokens(problem.prompt, problem.instructions) for problem in problems]
    return Rollouts.padded(problems, prompts, answers, texts=[problem.target for problem in problems])


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
