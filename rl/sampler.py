"""Sampling: G completions for each of P problems, with the behaviour log-prob of every token.

Each token's noise is a function of (seed, step, group, completion, position), so a lease that is generated again,
on another worker or beside other groups, draws the same numbers.

Legend: P problems, G completions per problem, T completion tokens.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np

from rl.config import SamplingConfig
from rl.decoding import TO_THE_LETTER, StopStrings
from rl.engine import complete
from rl.model.policy import Policy
from rl.records import Problem, Rollouts
from rl.slots import Slots

STREAM = (0,)  # keeps this noise apart from other draws with the same seed


def uniforms(seed: int, step: int, groups: Sequence[int], samples: int, length: int) -> np.ndarray:
    """[P * G, T] uniform numbers in [0, 1), the same for the same (seed, step, group) whatever is beside it."""
    seeds = [np.random.SeedSequence([seed, step, group], spawn_key=STREAM) for group in groups]
    rows = [np.random.Generator(np.random.Philox(s)).random((samples, length), dtype=np.float32) for s in seeds]
    return np.concatenate(rows)


def sample(
    policy: Policy,
    version: int,
    problems: Sequence[Problem],
    config: SamplingConfig,
    *,
    samples: int,
    seed: int,
    step: int,
    groups: Sequence[int],
    greedy: bool = False,
    between_tokens: Callable[[], None] = lambda: None,
    slots: Slots | None = None,
) -> Rollouts:
    """Draw ``samples`` completions of each problem. The end token or stop string of one is among its tokens, with its
    log-prob, and not in its text.

    Args:
        version: of the weights that ``policy`` holds, recorded with every token.
        groups: [P] the problems' numbers within the step: they name the noise.
        greedy: take the most likely token; log-probs are still those of the distribution.
        between_tokens: called before each; what it raises ends the sampling.
        slots: how many sequences are worked on at once, from one call to the next.

    Raises:
        ValueError: prompt and completion could grow longer than the model's attention window or range of positions.
        NoRoomError: the device has no memory for one sequence.
    """
    started = time.perf_counter()
    prompts = [policy.prompt_tokens(problem.prompt, problem.instructions) for problem in problems]
    P, G, T = len(prompts), samples, config.limit  # noqa: N806
    policy.check_room(max(map(len, prompts)), T)
    found = complete(
        policy,
        prompts,
        None if greedy else uniforms(seed, step, groups, G, T),
        samples=G,
        max_tokens=T,
        temperature=config.temperature,
        ends=policy.ends,
        stop=config.stop,
        between_tokens=between_tokens,
        slots=slots,
    )
    lengths = found.lengths
    longest = int(lengths.max())
    tokens = found.tokens[:, :longest]
    # an end token may be one that decoding would show
    said = [
        row[: length - (row[length - 1] in policy.ends)] for row, length in zip(tokens, lengths.tolist(), strict=True)
    ]
    texts = policy.tokenizer.batch_decode(said, **TO_THE_LETTER)
    if config.stop:
        texts = [StopStrings(policy, config.stop).cut(text) for text in texts]
    return Rollouts(
        problems=tuple(problems),
        prompts=tuple(np.asarray(prompt, dtype=np.int32) for prompt in prompts),
        tokens=tokens.reshape(P, G, longest),
        logprobs=found.logprobs[:, :longest].reshape(P, G, longest),
        versions=np.where(np.arange(longest) < lengths.reshape(P, G, 1), version, 0).astype(np.int32),
        lengths=lengths.reshape(P, G),
        ended=found.ended.reshape(P, G),
        texts=tuple(tuple(texts[p * G : (p + 1) * G]) for p in range(P)),
        seconds=time.perf_counter() - started,
    )
