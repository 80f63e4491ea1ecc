"""Sampling by a server in the engine's place, and whether it samples from the weights that it is given.

Legend: G completions per problem, T completion tokens.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from rl.config import COLDEST_SERVED, SamplingConfig
from rl.model.policy import Policy
from rl.model.tolerances import LENGTHS, TEXT, TOLERANCES
from rl.records import Problem, Rollouts
from rl.sampling.decoding import StopStrings
from rl.sampling.sampler import STREAM, as_rollouts
from rl.sampling.scheduling import Draw
from rl.sampling.server import Completion, Server, ServerError

SAMPLES, TOKENS = 4, 6  # of each prompt that it is tried with
TEMPERATURE = 2.0  # at which log-probs that lack it are far off
TOLERANCE = TOLERANCES[torch.bfloat16]  # whatever the server computes in
SHARE = 0.1  # of the distance to other weights


def first_seed(seed: int, step: int, group: int) -> int:
    """Of the first completion of a group; the server adds the number of each. Below 2**62."""
    state = np.random.SeedSequence([seed, step, group], spawn_key=STREAM).generate_state(1, np.uint64)
    return int(state[0] >> np.uint64(2))


def sample_served(
    policy: Policy,
    server: Server,
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
) -> Rollouts:
    """As `rl.sampling.sampler.sample`, by a server that has the weights of ``version``; of ``policy`` only the
    tokenizer and the configuration are used. Greedy log-probs are those at temperature 1.

    Raises:
        ValueError: prompt and completion could grow longer than the model or the server can take, or the temperature is
            lower than it takes.
        ServerError: what the server returns is not what it was asked for.
    """
    if config.temperature < COLDEST_SERVED:
        raise ValueError(
            f"sampling.temperature: give at least {COLDEST_SERVED:g} with policy.engine, not {config.temperature:g}"
        )
    started = time.perf_counter()
    prompts = [policy.prompt_tokens(problem.prompt, problem.instructions) for problem in problems]
    longest = max(map(len, prompts))
    policy.check_room(longest, config.limit)
    server.check_room(longest + config.limit)
    drawn_by = {"n": 1, "temperature": 0.0} if greedy else {"n": samples, "temperature": config.temperature}
    requests = [
        _request(
            prompt,
            **drawn_by,
            seed=first_seed(seed, step, group),
            max_tokens=config.limit,
            stop=list(config.stop),
            stop_token_ids=[*policy.ends, *StopStrings(policy, config.stop).ends],
        )
        for prompt, group in zip(prompts, groups, strict=True)
    ]
    answers = server.complete(requests, policy.text.vocab_size, between_tokens)
    rows = [(prompt, one) for prompt, row in zip(prompts, answers, strict=True) for one in row * (samples // len(row))]
    draws = [_draw(prompt, one, policy, config) for prompt, one in rows]
    for draw in draws:
        draw.by(version, 0)
    return as_rollouts(policy, problems, prompts, draws, config.stop, started)


def _request(prompt: Sequence[int], **given: Any) -> dict[str, Any]:
    """All of a request that decides the distribution: what it leaves out the server takes from the model's
    generation_config.json, top-k and top-p too."""
    whole = {"top_p": 1.0, "top_k": 0, "min_p": 0.0, "min_tokens": 0, "ignore_eos": True}
    whole |= {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
    return {**whole, **given, "prompt": list(prompt)}


def _draw(prompt: Sequence[int], one: Completion, policy: Policy, config: SamplingConfig) -> Draw:
    """Raises ServerError where a completion ends in another place than one of ours would."""
    tokens = np.array(one.tokens, dtype=np.int32)
    at_end = one.tokens[-1] in policy.ends
    ended = at_end or bool(config.stop and StopStrings(policy, config.stop).reached([tokens])[0])
    if ended != one.stopped or not set(policy.ends).isdisjoint(one.tokens[:-1]):
        raise ServerError(
            f"policy.engine: a completion of {len(tokens)} tokens ends where the policy's would not: the server has "
            "another tokenizer, or other end tokens"
        )
    return Draw(tuple(prompt), config.limit, None, tokens, np.array(one.logprobs, dtype=np.float32), ended)


# -- whether it has the weights that it is given


def require_taken(
    policy: Policy, server: Server, weights: Mapping[str, Tensor], hand_over: Callable[[Mapping[str, Tensor]], None]
) -> None:
    """See that the server computes with what `hand_over(weights)` gives it, and with nothing that it began with: it is
    given weights of which every tensor is moved by a row, and has them afterwards. ``policy`` has ``weights`` before
    and after.

    Raises:
        ServerError: its log-probs are not those of the moved weights.
    """
    for value in policy.weights().values():
        if value.dim():
            value.copy_(value.roll(1, 0))
    hand_over(policy.weights())
    tried = [_completions(policy, server, length) for length in LENGTHS]
    moved = [_logprobs(policy, prompt, ids) for prompt, ids, _ in tried]
    policy.load_weights(weights)
    unmoved = [_logprobs(policy, prompt, ids) for prompt, ids, _ in tried]
    gap = _distance(moved, [said for *_, said in tried])
    allowed = max(TOLERANCE, SHARE * _distance(moved, unmoved))
    if not gap <= allowed:
        raise ServerError(
            f"policy.engine: the server at {server.address} does not compute with the weights that it is given: its "
            f"log-probs are {gap:.2g} nats from theirs, {allowed:.2g} are allowed. It serves another model than "
            "policy.model, was started without --logprobs-mode processed_logprobs, or keeps a part of what it began "
            "with, as vLLM 0.32 on a CPU keeps a head that is tied to the embedding"
        )


def require_same(policy: Policy, server: Server) -> None:
    """Raise ServerError unless the server's log-probs are those of ``policy``."""
    tried = [_completions(policy, server, length) for length in LENGTHS]
    gap = _distance([_logprobs(policy, prompt, ids) for prompt, ids, _ in tried], [said for *_, said in tried])
    if not gap <= TOLERANCE:
        raise ServerError(
            f"policy.engine: log-probs of the server at {server.address} are {gap:.2g} nats from the policy's, "
            f"{TOLERANCE:g} are allowed; is its --dtype that of the model?"
        )


def _completions(policy: Policy, server: Server, length: int) -> tuple[list[int], Tensor, Tensor]:
    """A prompt, and token ids and log-probs [G, T] of its completions."""
    prompt = list(policy.tokenizer(TEXT)["input_ids"])[:length]
    request = _request(prompt, n=SAMPLES, max_tokens=TOKENS, temperature=TEMPERATURE, seed=0)
    [answer] = server.complete([request], policy.text.vocab_size)
    return prompt, torch.tensor([one.tokens for one in answer]), torch.tensor([one.logprobs for one in answer])


@torch.no_grad()
def _logprobs(policy: Policy, prompt: Sequence[int], ids: Tensor) -> Tensor:
    """[G, T] log-probs of token ids through the model's own forward pass."""
    whole = torch.cat([torch.tensor([prompt]).expand(len(ids), -1), ids], 1).to(policy.device)
    logits = policy.model(input_ids=whole, use_cache=False).logits[:, len(prompt) - 1 : -1].float()
    scores: Tensor = (logits / TEMPERATURE).log_softmax(-1).gather(2, whole[:, len(prompt) :, None]).squeeze(2)
    return scores.cpu()


def _distance(one: Sequence[Tensor], other: Sequence[Tensor]) -> float:
    """Nats, of the mean over tokens."""
    return float((torch.cat(list(one)) - torch.cat(list(other))).abs().mean())
