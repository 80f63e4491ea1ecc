"""Decoding: G completions for each of P prompts, with the log-prob of every token.

The prompts are prefilled once per group and their keys and values repeated; finished sequences leave the batch. As many
sequences as fit into memory are worked on at once.

Legend: P prompts, G completions per prompt, B sequences in the batch, S longest prompt, T completion tokens,
V vocabulary.
"""

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rl.model.head import head_logits, hidden_states
from rl.model.memory import is_out_of_memory, release
from rl.model.policy import Policy
from rl.slots import GroupCache, Slots

KEEP_FRACTION = 0.75  # the batch is compacted when fewer than this share of its sequences are unfinished

# many tokenizers would take the blanks before punctuation out of a text, which is then not what was sampled
TO_THE_LETTER = {"skip_special_tokens": True, "clean_up_tokenization_spaces": False}


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
    slots: Slots | None = None,
) -> Completions:
    """Draw ``samples`` completions of each prompt, all of ``max_tokens`` tokens but those that reach an end.

    Args:
        prompts: [P] of token ids.
        noise: [P * G, T] uniform numbers; None takes the most likely token.

    Raises:
        NoRoomError: the device has no memory for one sequence.
    """
    slots = slots or Slots(policy)
    positions, count = max(map(len, prompts)) + max_tokens, len(prompts) * samples
    parts: list[Completions] = []
    done = 0
    while done < count:
        end = min(count, done + slots.at_once(positions))
        first = done // samples
        try:
            parts.append(
                _complete(
                    policy,
                    prompts[first : (end - 1) // samples + 1],
                    None if noise is None else noise[done:end],
                    of=torch.arange(done, end) // samples - first,
                    max_tokens=max_tokens,
                    temperature=temperature,
                    ends=ends,
                    stop=stop,
                    between_tokens=between_tokens,
                )
            )
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
        else:
            done = end
            continue
        # here, where no error holds any more what was allocated
        release(policy.device)
        slots.ran_out(end - done, positions)
    return Completions(
        *(torch.cat([getattr(part, field.name) for part in parts]) for field in dataclasses.fields(Completions))
    )


def _complete(
    policy: Policy,
    prompts: Sequence[Sequence[int]],
    noise: Tensor | None,
    *,
    of: Tensor,
    max_tokens: int,
    temperature: float,
    ends: Sequence[int],
    stop: Sequence[str],
    between_tokens: Callable[[], None],
) -> Completions:
    """One completion of the prompt at each index in ``of`` [B], with its noise [B, T]."""
    device = policy.device
    P, B, S, T = len(prompts), len(of), max(map(len, prompts)), max_tokens  # noqa: N806
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
    tokens = torch.zeros((B, T), dtype=torch.int32, device=device)
    logprobs = torch.zeros((B, T), device=device)
    lengths = torch.full((B,), T, dtype=torch.int32, device=device)
    ended = torch.zeros(B, dtype=torch.bool, device=device)
    last_tokens = torch.tensor(ends, dtype=torch.int64, device=device)
    stops = StopStrings(policy, stop) if stop else None

    repeat = of.to(device)
    cache.select(repeat)
    seen = torch.cat([real, torch.ones((P, T), dtype=torch.bool, device=device)], 1)[repeat]  # [B, S + T]
    position = real.sum(1)[repeat]  # [B]
    last = hidden[:, -1][repeat]
    alive = torch.arange(B, device=device)  # rows of the result that the batch still works on
    going = torch.ones(B, dtype=torch.bool, device=device)  # [B]: unfinished rows of the batch
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
