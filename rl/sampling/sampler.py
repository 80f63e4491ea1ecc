"""Sampling: G completions for each of P problems, with the behaviour log-prob of every token.

Each token's noise is a function of (seed, step, group, completion, position), so a lease that is generated again,
on another worker or beside other groups, draws the same numbers.

Legend: P problems, G completions per problem, T completion tokens.
"""

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from rl.config import SamplingConfig
from rl.environments.interface import Interface
from rl.model.policy import Policy
from rl.records import Problem, Rollouts
from rl.sampling.conversation import Conversation, turn_starts
from rl.sampling.decoding import TO_THE_LETTER, StopStrings
from rl.sampling.engine import Engine, Hooks
from rl.sampling.prefix_cache import PrefixCache
from rl.sampling.scheduling import Draw
from rl.sampling.slots import Slots
from rl.slices import SoFar

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
    slots: Slots | None = None,
    kept: PrefixCache | None = None,
    hooks: Hooks = Hooks(),  # noqa: B008  # it is frozen
    so_far: SoFar | None = None,
    interface: Interface | None = None,
) -> Rollouts:
    """Draw ``samples`` completions of each problem. The end token or stop string of one is among its tokens, with its
    log-prob, and not in its text.

    Args:
        version: of the weights that ``policy`` holds, recorded with every token that they draw.
        groups: [P] the problems' numbers within the step: they name the noise.
        greedy: take the most likely token; log-probs are still those of the distribution.
        slots: how many sequences are worked on at once, from one call to the next.
        kept: keys and values of those that have ended a turn: found there, and left there for the next one.
        hooks: see `Hooks`.
        so_far: completions to go on with, whose prompts are taken as they are. Only the tokens behind these are
            returned, beside the whole texts; one that was over has none.
        interface: of the environment that is acted on: a turn of each completion is drawn, whose text is returned, and
            of problems that are played read as its action. What was observed comes with ``so_far``; its tokens are
            returned before those drawn.

    Raises:
        ValueError: prompt and completion could grow longer than the model's attention window or range of positions.
        NoRoomError: the device has no memory for one sequence.
        TurnsError: nothing can be put behind a turn of the model's.
    """
    started = time.perf_counter()
    conversation = None if interface is None else Conversation.of(policy, interface)
    if so_far is None:
        tools = interface.tools if interface is not None else ()
        prompts = [
            policy.prompt_tokens(problem.prompt, problem.instructions, tools if problem.played else (), problem.opening)
            for problem in problems
        ]
    else:
        prompts = [prompt.tolist() for prompt in so_far.prompts]
    policy.check_room(max(map(len, prompts)), config.limit)
    given: Sequence[np.ndarray | None] | None = None if so_far is None else so_far.tokens
    if conversation is not None and so_far is not None:
        given = conversation.given(so_far, config.limit)
    noise = None if greedy else uniforms(seed, step, groups, samples, config.limit)
    drawn = [
        Draw(tuple(prompt), config.limit, None if noise is None else noise[p * samples + g], goes_on=problem.played)
        for p, (prompt, problem) in enumerate(zip(prompts, problems, strict=True))
        for g in range(samples)
    ]
    engine = Engine(
        policy,
        slots,
        temperature=config.temperature,
        ends=policy.ends,
        stop=config.stop,
        version=version,
        kept=kept,
    )
    for row, draw in enumerate(drawn):
        tokens = () if given is None else given[row]
        if tokens is None:  # it is over
            continue
        if len(tokens) < config.limit:
            engine.go_on(draw, tokens)
        else:  # what was observed leaves no room
            draw.give(tokens)
    engine.run(hooks)
    starts, drawn_from = _lengths(None if so_far is None else so_far.tokens), _lengths(given)
    if conversation is None:
        return as_rollouts(policy, problems, prompts, drawn, config.stop, started, starts, drawn_from)
    turns = turn_starts(len(drawn), so_far, drawn_from)
    rollouts = as_rollouts(policy, problems, prompts, drawn, config.stop, started, starts, drawn_from, turns)
    return replace(rollouts, actions=tuple(conversation.actions(drawn, turns, problems)))


def as_rollouts(
    policy: Policy,
    problems: Sequence[Problem],
    prompts: Sequence[Sequence[int]],
    drawn: Sequence[Draw],
    stop: Sequence[str],
    started: float,
    starts: Sequence[int] | None = None,
    drawn_from: Sequence[int] | None = None,
    said_from: Sequence[int] | None = None,
) -> Rollouts:
    """The record of [P * G] draws that were begun at ``started`` (`time.perf_counter`), with their texts; of the tokens
    those from ``starts`` [P * G] on, of which those before ``drawn_from`` [P * G] are others' than the policy's. Texts
    are of the tokens from ``said_from`` [P * G] on."""
    # an end token may be one that decoding would show
    said = [
        draw.tokens[first : len(draw.tokens) - any(t in policy.ends for t in draw.tokens[-1:])].tolist()
        for draw, first in zip(drawn, said_from or [0] * len(drawn), strict=True)
    ]
    texts = policy.tokenizer.batch_decode(said, **TO_THE_LETTER)
    if stop:
        texts = [StopStrings(policy, stop).cut(text) for text in texts]
    cut = [slice(start, None) for start in starts or [0] * len(drawn)]
    tokens = [draw.tokens[part] for draw, part in zip(drawn, cut, strict=True)]
    others = [behind - part.start for behind, part in zip(drawn_from or starts or [0] * len(drawn), cut, strict=True)]
    trained = [np.arange(len(row)) >= count for row, count in zip(tokens, others, strict=True)]

    def of_policy(row: np.ndarray, own: np.ndarray) -> np.ndarray:
        return np.where(own, row, row.dtype.type(0))

    return Rollouts.padded(
        problems,
        prompts,
        tokens,
        logprobs=[of_policy(draw.logprobs[part], own) for draw, part, own in zip(drawn, cut, trained, strict=True)],
        versions=[of_policy(draw.versions[part], own) for draw, part, own in zip(drawn, cut, trained, strict=True)],
        trained=trained,
        ended=[draw.ended for draw in drawn],
        texts=texts,
        seconds=time.perf_counter() - started,
    )


def _lengths(rows: Sequence[np.ndarray | None] | None) -> list[int] | None:
    return None if rows is None else [0 if tokens is None else len(tokens) for tokens in rows]
