"""Given completions as rollouts, and supervised learning of a problem's own expression: the warm-up that gives a fresh
policy something to reward."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from rl.learning.fitting import optimize
from rl.learning.learner import Learner
from rl.learning.objectives import Imitation
from rl.model.policy import Policy
from rl.model.turns import Turns
from rl.problems.examples import Example
from rl.problems.shown import Shown
from rl.records import Problem, Rollouts


def demonstrations(policy: Policy, shown: Sequence[Shown]) -> Rollouts:
    """What is shown as the one completion of each problem (G = 1). The policy wrote all of it but what it observed.

    Raises:
        TurnsError: nothing can be put behind a turn of the model's, and something is shown in several.
    """
    several = any(len(each.turns) > 1 for each in shown)
    turns = Turns.of(policy.tokenizer, policy.ends, tools=True) if several else None
    completions: list[list[int]] = []
    trained: list[list[bool]] = []
    for each in shown:
        parts, before = list[tuple[list[int], bool]](), ""
        for said, observed in each.turns:
            if turns is not None and parts:
                parts.append((turns.observed([before], closed=True), False))
            parts.append(([*_tokens(policy, said), policy.end], True))
            before = observed
        completions.append([token for tokens, _ in parts for token in tokens])
        trained.append([own for tokens, own in parts for _ in tokens])
    problems = [each.problem for each in shown]
    prompts = [policy.prompt_tokens(problem.prompt, problem.instructions) for problem in problems]
    texts = ["\n".join(said for said, _ in each.turns) for each in shown]
    return Rollouts.padded(problems, prompts, completions, trained=trained, texts=texts)


def as_rollouts(policy: Policy, examples: Sequence[Example], max_tokens: int) -> Rollouts:
    """The examples with their own completions, each with the end token behind it and cut at ``max_tokens`` or where the
    model can attend to no more.

    Raises:
        ValueError: a prompt leaves no room for a completion, or both of a pair are the same when they are cut.
    """
    prompts = [policy.prompt_tokens(example.prompt, example.instructions) for example in examples]
    completions: list[list[int]] = []
    for example, prompt in zip(examples, prompts, strict=True):
        reach = math.inf if policy.reach is None else policy.reach[0]
        room = int(min(max_tokens, reach - len(prompt)))
        if room < 1:
            raise ValueError(f"{example.source}: its prompt has {len(prompt)} tokens; the model attends to {reach}")
        tokens = [[*_tokens(policy, text), policy.end][:room] for text in example.completions]
        if len(tokens) > 1 and tokens[0] == tokens[1]:
            raise ValueError(
                f"{example.source}: chosen and rejected are the same in their first {len(tokens[0])} tokens; give more "
                "max_tokens, or leave it out"
            )
        completions += tokens
    ended = [bool(tokens[-1] == policy.end) for tokens in completions]
    return Rollouts.padded(examples, prompts, completions, ended=ended)


def answered(
    policy: Policy, problems: Sequence[Problem], texts: Sequence[Sequence[str]], ended: NDArray[np.bool_]
) -> tuple[Rollouts, NDArray[np.bool_]]:
    """Completions ``texts`` [P] of [G] in the policy's own tokens behind the problems' prompts, without instructions;
    the end token is behind those that ``ended`` [P, G]. What the model does not reach is cut: of which, [P, G].

    Raises:
        ValueError: a prompt leaves no room for a completion.
    """
    prompts = [policy.prompt_tokens(problem.prompt) for problem in problems]
    reach, what = policy.reach or (math.inf, "")
    completions, cut = [], np.zeros(ended.shape, np.bool_)
    for row, (problem, prompt) in enumerate(zip(problems, prompts, strict=True)):
        if (room := reach - len(prompt)) < 1:
            raise ValueError(
                f"the prompt of {problem.source} has {len(prompt)} tokens, and leaves no room for a completion in its "
                f"{what} of {reach}: shorten it, leave it out, or name another one"
            )
        for sample, (text, end) in enumerate(zip(texts[row], ended[row].tolist(), strict=True)):
            tokens = [*_tokens(policy, text), *([policy.end] if end else [])] or [policy.end]
            cut[row, sample] = len(tokens) > room
            completions.append(tokens[: int(min(room, len(tokens)))])
    return Rollouts.padded(problems, prompts, completions), cut


def imitate(learner: Learner, shown: Rollouts, scale: float = 1.0) -> float:
    """One optimizer step on -mean log pi(target token), at ``scale`` times the learning rate; returns that loss in nats
    per token."""
    return optimize(learner, shown, Imitation(), rate=scale).loss


def _tokens(policy: Policy, text: str) -> list[int]:
    return list(policy.tokenizer(text, add_special_tokens=False)["input_ids"])
