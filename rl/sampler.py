"""Sampling: G completions for each of P prompts, with the behaviour log-prob of every token.

The prompts are prefilled once per group and their keys and values repeated; finished sequences leave the batch.
Each token's noise is a function of (seed, step, group, completion, position), so a lease that is generated again,
on another worker or beside other groups, draws the same numbers.

Legend: P prompts, G completions per prompt, B sequences in the batch, S longest prompt, T completion tokens,
V vocabulary.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from rl.config import SamplingConfig
from rl.model.head import head_logits, hidden_states
from rl.model.policy import Policy
from rl.records import Problem, Rollouts

KEEP_FRACTION = 0.75  # the batch is compacted when fewer than this share of its sequences are unfinished

# many tokenizers would take the blanks before punctuation out of a text, which is then not what was sampled
TO_THE_LETTER = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}

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

    The uniform number is scaled by the sum as accumulated, so that on a CPU, which adds one by one, rounding never
    selects a token of probability 0. The sums of a parallel scan may fall, or rise at such a token: see `never_zero`.
    """
    cumulative = logprobs.exp().cumsum(-1)
    at = uniform[:, None] * cumulative[:, -1:]
    chosen = torch.searchsorted(cumulative, at, right=True).squeeze(1).clamp_(max=logprobs.shape[1] - 1)
    return chosen if logprobs.device.type == "cpu" else never_zero(logprobs, chosen)


def never_zero(logprobs: Tensor, chosen: Tensor) -> Tensor:
    """[B] the chosen tokens, those of probability 0 replaced by the most likely one. A running maximum of the sums
    would mend them before the choice, at more than the cost of the choice (V = 152k on a CPU)."""
    unlikely = logprobs.gather(1, chosen[:, None]).squeeze(1).exp() == 0
    return torch.where(unlikely, logprobs.argmax(-1), chosen)


@dataclass(frozen=True)
class Completions:
    """G completions for each of P prompts, on the policy's device."""

    tokens: Tensor  # [P * G, T] int32; 0 past a completion's length
    logprobs: Tensor  # [P * G, T] after temperature
    lengths: Tensor  # [P * G] int32
    ended: Tensor  # [P * G] bool: by an end token or a stop string


class StopStrings:
    """Texts that end a completion. Only the last tokens are decoded at each step: a text of n bytes spans at most n
    tokens that say anything, and one more, because some tokenizers drop the space that a text begins with."""

    def __init__(self, policy: Policy, stop: Sequence[str]) -> None:
        self.tokenizer = policy.tokenizer
        self.stop = stop
        self.reach = max((len(text.encode()) for text in stop), default=0) + 1

    def reached(self, tokens: Tensor) -> Tensor:
        """[B] bool: whether the newest of the completions' tokens [B, t] completes one of them."""
        tails = self.tokenizer.batch_decode(tokens[:, -self.reach :].cpu().numpy(), **TO_THE_LETTER)
        return torch.tensor([any(text in tail for text in self.stop) for tail in tails], device=tokens.device)

    def cut(self, text: str) -> str:
        """The text up to the first of them."""
        return text[: min((at for one in self.stop if (at := text.find(one)) >= 0), default=len(text))]


@torch.inference_mode()
def complete(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    noise: Tensor | None,
    *,
    samples: int,
    max_tokens: int,
    temperature: float = 1.0,
    ends: Sequence[int] = (),
    stop: Sequence[str] = (),
    between_tokens: Callable[[], None] = lambda: None,
) -> Completions:
    """Draw ``samples`` completions of each prompt, all of ``max_tokens`` tokens but those that reach an end.

    Args:
        prompts: [P] of token ids.
        noise: [P * G, T] uniform numbers; None takes the most likely token.
    """
    device = policy.device
    P, G, S, T = len(prompts), samples, max(map(len, prompts)), max_tokens  # noqa: N806
    ids = torch.full((P, S), policy.end)
    real = torch.zeros((P, S), dtype=torch.bool)
    for row, prompt in enumerate(prompts):
        ids[row, S - len(prompt) :] = torch.tensor(prompt)
        real[row, S - len(prompt) :] = True
    real = real.to(device)
    # a padding position sees itself, or its softmax would be over nothing and its NaN would spread
    at = torch.arange(S, device=device)
    prefill = (at[:, None] >= at) & real[:, None, :] | (at[:, None] == at)
    cache = GroupCache(S + T)
    hidden = hidden_states(
        policy.model,
        mask=prefill[:, None],
        input_ids=ids.to(device),
        position_ids=(real.cumsum(1) - 1).clamp(min=0),
        past_key_values=cache,
        use_cache=True,
    )
    cache.used = S
    tokens = torch.zeros((P * G, T), dtype=torch.int32, device=device)
    logprobs = torch.zeros((P * G, T), device=device)
    lengths = torch.full((P * G,), T, dtype=torch.int32, device=device)
    ended = torch.zeros(P * G, dtype=torch.bool, device=device)
    last_tokens = torch.tensor(ends, dtype=torch.int64, device=device)
    stops = StopStrings(policy, stop) if stop else None

    repeat = torch.arange(P, device=device).repeat_interleave(G)
    cache.select(repeat)
    seen = torch.cat([real, torch.ones((P, T), dtype=torch.bool, device=device)], 1)[repeat]  # [B, S + T]
    position = real.sum(1)[repeat]  # [B]
    last = hidden[:, -1][repeat]
    alive = torch.arange(P * G, device=device)  # rows of the result that the batch still works on
    going = torch.ones(P * G, dtype=torch.bool, device=device)  # [B]: unfinished rows of the batch
    for t in range(T):
        between_tokens()
        scores = (head_logits(policy.model, last) / temperature).log_softmax(-1)
        token = scores.argmax(-1) if noise is None else choose(scores, noise[alive, t])
        written = alive[going]
        tokens[written, t] = token[going].int()
        logprobs[written, t] = scores.gather(1, token[:, None]).squeeze(1)[going]
        over = going & (token[:, None] == last_tokens).any(1)
        if stops is not None:
            over[going] |= stops.reached(tokens[written, : t + 1])
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
            mask=seen[:, None, None, : S + t + 1],
            input_ids=token[:, None],
            position_ids=position[:, None],
            past_key_values=cache,
            use_cache=True,
        )
        cache.used += 1
        position = position + 1
        last = hidden[:, -1]
    return Completions(tokens, logprobs, lengths, ended)


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
    """Draw ``samples`` completions of each problem. The end token or stop string of one is among its tokens, with its
    log-prob, and not in its text.

    Args:
        version: of the weights that ``policy`` holds, recorded with every token.
        groups: [P] the problems' numbers within the step: they name the noise.
        greedy: take the most likely token; log-probs are still those of the distribution.
        between_tokens: called before each; what it raises ends the sampling.

    Raises:
        ValueError: prompt and completion could grow longer than the model's attention window or range of positions.
    """
    started = time.perf_counter()
    prompts = [policy.prompt_tokens(problem.prompt, problem.instructions) for problem in problems]
    P, G, T = len(prompts), samples, config.limit  # noqa: N806
    policy.check_room(max(map(len, prompts)), T)
    found = complete(
        policy,
        prompts,
        None if greedy else uniforms(seed, step, groups, G, T).to(policy.device),
        samples=G,
        max_tokens=T,
        temperature=config.temperature,
        ends=policy.ends,
        stop=config.stop,
        between_tokens=between_tokens,
    )
    lengths = found.lengths.cpu().numpy()
    longest = int(lengths.max())
    tokens = found.tokens[:, :longest].cpu().numpy()
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
        logprobs=found.logprobs[:, :longest].cpu().numpy().reshape(P, G, longest),
        versions=np.where(np.arange(longest) < lengths.reshape(P, G, 1), version, 0).astype(np.int32),
        lengths=lengths.reshape(P, G),
        ended=found.ended.cpu().numpy().reshape(P, G),
        texts=tuple(tuple(texts[p * G : (p + 1) * G]) for p in range(P)),
        seconds=time.perf_counter() - started,
    )
