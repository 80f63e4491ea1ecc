"""The records that travel between the stages.

Legend: P problems (groups), G completions per problem, S prompt tokens, T completion tokens. Arrays are numpy: they
cross machines, and token ids travel as they are, never as text to be tokenised again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Briefing:
    """What a model is told beside a problem: through its chat template, or in a text with places for both."""

    system: str
    examples: tuple[tuple[str, str], ...] = ()  # question and answer
    template: str | None = None  # with {prompt} and perhaps {system}: the whole text, in place of a chat template
    required: bool = False  # not to be left out in silence where a model has no chat template


@dataclass(frozen=True)
class Problem:
    """Something to solve that a program can check."""

    prompt: str  # the question, in natural language
    target: str  # what its verifier compares with; of arithmetic an expression whose value is the answer
    source: str  # where it came from, for people: "math_1k.csv:17" or "grammar:0.3.42"
    extra: Mapping[str, Any] = field(default_factory=dict)  # further columns of its file: what JSON can hold
    set: str = ""  # the name of its problem set, which says how it is judged
    briefing: Briefing | None = None


@dataclass(frozen=True)
class Verdict:
    """What a verifier says of one completion. A verifier that failed says so in `error`, and its reward is NaN."""

    reward: float
    reason: str  # "right", "wrong_value", "unparsable", ...; "verifier_error" or "timeout" for a failure
    parts: Mapping[str, float] = field(default_factory=dict)  # what the reward is made of, for people
    error: str = ""  # one line


@dataclass(frozen=True)
class Rollouts:
    """Sampled completions, G for each of P problems. Positions past a completion's length hold 0."""

    problems: tuple[Problem, ...]  # [P]
    prompts: tuple[NDArray[np.int32], ...]  # [P] of [S]: the prompt's token ids, each of its own length
    tokens: NDArray[np.int32]  # [P, G, T]: the end-of-sequence token is part of the completion
    logprobs: NDArray[np.float32]  # [P, G, T]: log-prob under the behaviour policy, after temperature
    versions: NDArray[np.int32]  # [P, G, T]: the policy version that sampled the token
    lengths: NDArray[np.int32]  # [P, G]: tokens in each completion
    ended: NDArray[np.bool_]  # [P, G]: finish reason: end of sequence (True) or cut at the token limit (False)
    texts: tuple[tuple[str, ...], ...]  # [P] of [G]: decoded completions, without special tokens
    seconds: float = 0.0  # that sampling took on its worker

    @property
    def generated_tokens(self) -> int:
        return int(self.lengths.sum())


@dataclass(frozen=True)
class Batch:
    """Judged groups in order of admission: what one update trains on."""

    rollouts: Rollouts
    rewards: NDArray[np.float32]  # [P, G]; NaN where the verifier failed
    reasons: tuple[tuple[str, ...], ...]  # [P] of [G]

    def __len__(self) -> int:
        return len(self.rollouts.problems)

    @property
    def varied(self) -> NDArray[np.bool_]:
        """[P]: groups whose rewards differ, of those that are known, which are two at least; the others have nothing to
        teach."""
        unknown = np.isnan(self.rewards)
        highest = np.where(unknown, -np.inf, self.rewards).max(axis=1, initial=-np.inf)
        lowest = np.where(unknown, np.inf, self.rewards).min(axis=1, initial=np.inf)
        differ: NDArray[np.bool_] = highest > lowest
        return differ

    def select(self, groups: Sequence[int]) -> "Batch":
        """The named groups, in the order given."""
        of, index = self.rollouts, list(groups)
        rollouts = Rollouts(
            problems=tuple(of.problems[i] for i in index),
            prompts=tuple(of.prompts[i] for i in index),
            tokens=of.tokens[index],
            logprobs=of.logprobs[index],
            versions=of.versions[index],
            lengths=of.lengths[index],
            ended=of.ended[index],
            texts=tuple(of.texts[i] for i in index),
            seconds=of.seconds,
        )
        return Batch(rollouts, self.rewards[index], tuple(self.reasons[i] for i in index))


def concatenate(batches: Sequence[Batch]) -> Batch:
    """Several batches as one, in order; the token axis grows to the longest.

    Raises:
        ValueError: there is none.
    """
    if not batches:
        raise ValueError("no batch to concatenate")
    parts = [batch.rollouts for batch in batches]
    longest = max(part.tokens.shape[2] for part in parts)

    def padded(arrays: list[NDArray[np.generic]]) -> NDArray[np.generic]:
        return np.concatenate([np.pad(a, ((0, 0), (0, 0), (0, longest - a.shape[2]))) for a in arrays])

    rollouts = Rollouts(
        problems=tuple(problem for part in parts for problem in part.problems),
        prompts=tuple(prompt for part in parts for prompt in part.prompts),
        tokens=padded([part.tokens for part in parts]).astype(np.int32),
        logprobs=padded([part.logprobs for part in parts]).astype(np.float32),
        versions=padded([part.versions for part in parts]).astype(np.int32),
        lengths=np.concatenate([part.lengths for part in parts]),
        ended=np.concatenate([part.ended for part in parts]),
        texts=tuple(texts for part in parts for texts in part.texts),
        seconds=sum(part.seconds for part in parts),
    )
    rewards = np.concatenate([batch.rewards for batch in batches])
    return Batch(rollouts, rewards, tuple(reasons for batch in batches for reasons in batch.reasons))
