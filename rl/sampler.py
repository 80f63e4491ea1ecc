"""Sampling: G completions for each of P prompts, with the behaviour log-prob of every token.

The prompts are prefilled once per group and their keys and values repeated; finished sequences leave the batch.
Each token's noise is a function of (seed, step, group, completion, position), so a lease that is generated again,
on another worker or beside other groups, draws the same numbers.

Legend: P prompts, G completions per prompt, B sequences in the batch, S longest prompt, T completion tokens,
V vocabulary.
"""

import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from rl.config import SamplingConfig
from rl.policy import Policy, head_logits, hidden_states
from rl.records import Problem, Rollouts

KEEP_FRACTION = 0.75  # the batch is compacted when fewer than this share of its sequences are unfinished

STREAM = (0,)  # keeps this noise apart from other draws with the same seed


class GroupCache:
    """Keys and values in one allocation per layer; the interface that transformers' attention layers call."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity  # positions
        self.used = 0
        self.keys: dict[int, Tensor] = {}  # layer: [B, heads, capacity, head size]
        self.values: dict[int, Tensor] = {}

    def update(self, keys: Tensor, values: Tensor, layer: int, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Append [B, heads, new, head size] and return everything so far."""
        if layer not in self.keys:
            shape = (*keys.shape[:2], self.capacity, keys.shape[3])
            self.keys[layer] = keys.new_empty(shape)
            self.values[layer] = values.new_empty((*shape[:3], values.shape[3]))
        end = self.used + keys.shape[2]
        self.keys[layer][:, :, self.used : end] = keys
        self.values[layer][:, :, self.used : end] = values
        return self.keys[layer][:, :, :end], self.values[layer][:, :, :end]

    def get_seq_length(self, *_: object) -> int:
        return self.used

    def select(self, rows: Tensor) -> None:
        """Keep these rows of the batch, in this order (a row may come several times)."""
        for layer in self.keys:
            self.keys[layer] = self.keys[layer].index_select(0, rows)
            self.values[layer] = self.values[layer].index_select(0, rows)


def uniforms(seed: int, step: int, groups: Sequence[int], samples: int, length: int) -> Tensor:
    """[P * G, T] uniform numbers in [0, 1), the same for the same (seed, step, group) whatever is beside it."""
    seeds = [np.random.SeedSequence([seed, step, group], spawn_key=STREAM) for group in groups]
    rows = [np.random.Generator(np.random.Philox(s)).random((samples, length), dtype=np.float32) for s in seeds]
    return torch.from_numpy(np.concatenate(rows))


def choose(logprobs: Tensor, uniform: Tensor) -> Tensor:
    """[B] tokens by inverting the cumulative distribution [B, V] at [B] uniform numbers.

    The uniform number is scaled by the sum as accumulated, so rounding never selects a token of probability 0.
    """
    cumulative = logprobs.exp().cumsum(-1)
    at = uniform[:, None] * cumulative[:, -1:]
    return torch.searchsorted(cumulative, at, right=True).squeeze(1).clamp_(max=logprobs.shape[1] - 1)


@torch.inference_mode()
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
) -> Rollouts:
    """Draw ``samples`` completions of each problem.

    Args:
        version: of the weights that ``policy`` holds, recorded with every token.
        groups: [P] the problems' numbers within the step: they name the noise.
        greedy: take the most likely token instead; log-probs are still those of the distribution.
        between_tokens: called before each; what it raises ends the sampling.

    Raises:
        ValueError: prompt and completion could grow longer than the model's attention window.
    """
    started = time.perf_counter()
    device = policy.device
    prompts = [policy.prompt_tokens(problem.prompt, problem.briefing) for problem in problems]
    P, G, S, T = len(prompts), samples, max(map(len, prompts)), config.max_tokens  # noqa: N806
    if policy.window is not None and policy.window < S + T:
        raise ValueError(
            f"sampling.max_tokens: {S} tokens of prompt and {T} of completion reach beyond the model's attention "
            f"window of {policy.window}"
        )
    ids = torch.full((P, S), policy.end)
    real = torch.zeros((P, S), dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        ids[row, S - len(prompt) :] = torch.tensor(prompt)
        real[row, S - len(prompt) :] = True
    real = real.to(device)
    # a padding position sees itself, or its softmax would be over nothing and its NaN would spread
    causal = torch.ones((S, S), dtype=torch.bool, device=device).tril()
    prefill = causal & real[:, None, :] | torch.eye(S, dtype=torch.bool, device=device)
    cache = GroupCache(S + T)
    hidden = hidden_states(
        policy.model,
        input_ids=ids.to(device),
        position_ids=(real.cumsum(1) - 1).clamp(min=0),
        attention_mask=prefill[:, None],
        past_key_values=cache,
        use_cache=True,
    )
    cache.used = S
    noise = uniforms(seed, step, groups, G, T).to(device)
    tokens = torch.zeros((P * G, T), dtype=torch.int32, device=device)
    logprobs = torch.zeros((P * G, T), device=device)
    lengths = torch.full((P * G,), T, dtype=torch.int32, device=device)
    ended = torch.zeros(P * G, dtype=torch.bool, device=device)

    repeat = torch.arange(P, device=device).repeat_interleave(G)
    cache.select(repeat)
    seen = torch.cat([real, torch.ones((P, T), dtype=torch.bool, device=device)], 1)[repeat]  # [B, S + T]
    position = real.sum(1)[repeat]  # [B]
    last = hidden[:, -1][repeat]
    alive = torch.arange(P * G, device=device)  # rows of the result that the batch still works on
    going = torch.ones(P * G, dtype=torch.bool, device=device)  # [B]: unfinished rows of the batch
    for t in range(T):
        between_tokens()
        scores = (head_logits(policy.model, last) / config.temperature).log_softmax(-1)
        token = scores.argmax(-1) if greedy else choose(scores, noise[alive, t])
        written = alive[going]
        tokens[written, t] = token[going].int()
        logprobs[written, t] = scores.gather(1, token[:, None]).squeeze(1)[going]
        over = going & (token == policy.end)
        lengths[alive[over]] = t + 1
        ended[alive[over]] = True
        going = going & ~over
        unfinished = int(going.sum())
        if unfinished == 0 or t == T - 1:
            break
        if unfinished < KEEP_FRACTION * len(alive):
            rows = going.nonzero().squeeze(1)
            cache.select(rows)
            alive, seen, position, token = alive[rows], seen[rows], position[rows], token[rows]
            going = torch.ones_like(rows, dtype=torch.bool)
        hidden = hidden_states(
            policy.model,
            input_ids=token[:, None],
            position_ids=position[:, None],
            attention_mask=seen[:, None, None, : S + t + 1],
            past_key_values=cache,
            use_cache=True,
        )
        cache.used += 1
        position = position + 1
        last = hidden[:, -1]

    longest = int(lengths.max())
    lengths_ = lengths.cpu().numpy()
    tokens_ = tokens[:, :longest].cpu().numpy()
    texts = policy.tokenizer.batch_decode(
        [row[:length] for row, length in zip(tokens_, lengths_, strict=True)], skip_special_tokens=True
    )
    return Rollouts(
        problems=tuple(problems),
        prompts=tuple(np.asarray(prompt, dtype=np.int32) for prompt in prompts),
        tokens=tokens_.reshape(P, G, longest),
        logprobs=logprobs[:, :longest].cpu().numpy().reshape(P, G, longest),
        versions=np.where(np.arange(longest) < lengths_.reshape(P, G, 1), version, 0).astype(np.int32),
        lengths=lengths_.reshape(P, G),
        ended=ended.cpu().numpy().reshape(P, G),
        texts=tuple(tuple(texts[p * G : (p + 1) * G]) for p in range(P)),
        seconds=time.perf_counter() - started,
    )
