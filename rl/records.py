"""The records that travel between the stages.

Legend: P problems (groups), G completions per problem, S prompt tokens, T completion tokens. Arrays are numpy: they
cross machines, and token ids travel as they are, never as text to be tokenised again.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from typing import Annotated, Any, get_type_hints

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray


@dataclass(frozen=True)
class Instructions:
    """System prompt and examples of a problem: through a chat template, or in a text with places for both."""

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
    instructions: Instructions | None = None
    no_target: str = ""  # why there is no target, which is empty then: who asks for it is told
    played: bool = False  # whether an environment is acted on, in turns, and gives the reward
    opening: str = ""  # what that says before the policy does, behind the prompt; only where an episode has begun

    @property
    def shown(self) -> str:
        """What the policy is asked, for people."""
        return self.prompt + self.opening


@dataclass(frozen=True)
class Verdict:
    """A verifier's verdict on one completion. Where the verifier failed, `error` says so, and the reward is NaN."""

    reward: float
    reason: str  # "right", "wrong_value", "unparsable", ...; "verifier_error" or "timeout" for a failure
    parts: Mapping[str, float] = field(default_factory=dict)  # what the reward is made of, for people
    error: str = ""  # one line


@dataclass(frozen=True)
class Maker:
    """Who sampled a group."""

    worker: str = ""  # its name; a generator leaves it to who has asked it
    dtype: str = ""  # of its arithmetic; empty where that is a server's


def arrays(record: type) -> dict[str, tuple[str, str]]:
    """The fields of a record that are arrays: their axes, and the kinds of numbers (``dtype.kind``) in them."""
    hints = get_type_hints(record, include_extras=True)
    return {name: hint.__metadata__ for name, hint in hints.items() if hasattr(hint, "__metadata__")}


@dataclass(frozen=True)
class Rollouts:
    """Sampled completions, G for each of P problems. Positions past a completion's length hold 0. A completion of
    several turns holds the observations between them too, which somebody else wrote: these are tokens to condition on,
    and nothing else of them is read."""

    problems: tuple[Problem, ...]  # [P]
    prompts: tuple[NDArray[np.int32], ...]  # [P] of [S]: the prompt's token ids, each of its own length
    tokens: Annotated[NDArray[np.int32], "PGT", "iu"]  # the end-of-sequence token is part of the completion
    logprobs: Annotated[NDArray[np.float32], "PGT", "f"]  # under the behaviour policy, after temperature
    versions: Annotated[NDArray[np.int32], "PGT", "iu"]  # the policy version that sampled the token
    trained: Annotated[NDArray[np.bool_], "PGT", "b"]  # tokens that the policy wrote; the others are observations
    lengths: Annotated[NDArray[np.int32], "PG", "iu"]  # tokens in each completion, observations among them
    ended: Annotated[NDArray[np.bool_], "PG", "b"]  # finish reason: end of sequence, or cut at the token limit (False)
    texts: tuple[tuple[str, ...], ...]  # [P] of [G]: decoded completions, without special tokens; of turns the last one
    seconds: float = 0.0  # that sampling took on its worker
    makers: tuple[Maker, ...] = ()  # [P]; () where nobody has said
    actions: tuple[tuple[str, ...], ...] = ()  # [P] of [G]: what the last turn asks for, as a text; () without turns

    @classmethod
    def padded(
        cls,
        problems: Sequence[Problem],
        prompts: Iterable[ArrayLike],
        completions: Iterable[ArrayLike],
        *,
        logprobs: Iterable[ArrayLike] | None = None,
        version: int = 0,
        versions: Iterable[ArrayLike] | None = None,
        trained: Iterable[ArrayLike] | None = None,
        ended: ArrayLike = True,
        texts: Sequence[str] = (),
        seconds: float = 0.0,
    ) -> "Rollouts":
        """Of [P] prompts and [P * G] completions as token ids, each of its own length. Log-probs, versions, flags and
        texts are [P * G] too; without them log-probs are 0, versions all ``version``, all tokens the policy's and texts
        empty."""
        tokens = [np.asarray(completion) for completion in completions]
        P, G = len(problems), len(tokens) // len(problems)  # noqa: N806
        lengths = np.array([len(each) for each in tokens], dtype=np.int32)
        inside = np.arange(lengths.max()) < lengths[:, None]

        def filled(rows: Iterable[ArrayLike], dtype: DTypeLike) -> NDArray[Any]:
            array = np.zeros(inside.shape, dtype)
            array[inside] = np.concatenate([np.asarray(row) for row in rows])
            return array.reshape(P, G, -1)

        texts = texts or [""] * len(tokens)
        return cls(
            problems=tuple(problems),
            prompts=tuple(np.asarray(prompt, dtype=np.int32) for prompt in prompts),
            tokens=filled(tokens, np.int32),
            logprobs=filled(map(np.zeros, lengths) if logprobs is None else logprobs, np.float32),
            versions=filled((np.full(n, version) for n in lengths) if versions is None else versions, np.int32),
            trained=inside.reshape(P, G, -1) if trained is None else filled(trained, np.bool_),
            lengths=lengths.reshape(P, G),
            ended=np.full(len(tokens), ended, dtype=np.bool_).reshape(P, G),
            texts=tuple(tuple(texts[p * G : (p + 1) * G]) for p in range(P)),
            seconds=seconds,
        )

    @property
    def inside(self) -> NDArray[np.bool_]:
        """[P, G, T]: the tokens within each completion's length."""
        within: NDArray[np.bool_] = np.arange(self.tokens.shape[2]) < self.lengths[..., None]
        return within

    @property
    def trained_lengths(self) -> NDArray[np.int32]:
        """[P, G]: how many tokens of each completion the policy wrote."""
        counts: NDArray[np.int32] = self.trained.sum(axis=2, dtype=np.int32)
        return counts

    def only(self, completions: NDArray[np.bool_]) -> "Rollouts":
        """Without the tokens of the others than these completions [P, G]."""
        lengths = np.where(completions, self.lengths, 0).astype(np.int32)
        return replace(self, lengths=lengths, trained=self.trained & completions[..., None])

    def typed(self) -> "Rollouts":
        """With arrays of the types above: a worker may have returned others of their kind."""
        types = {"iu": np.int32, "f": np.float32, "b": np.bool_}
        return replace(
            self, **{name: getattr(self, name).astype(types[kind]) for name, (_, kind) in arrays(type(self)).items()}
        )

    def select(self, groups: Sequence[int]) -> "Rollouts":
        """The named groups, in the order given."""
        selected: Rollouts = rows_of(self, list(groups))
        return selected

    def made_by(self, worker: str) -> "Rollouts":
        """As sampled by the worker of this name."""
        makers = self.makers or (Maker(),) * len(self.problems)
        return replace(self, makers=tuple(replace(maker, worker=worker) for maker in makers))

    @property
    def generated_tokens(self) -> int:
        return int(self.trained.sum())


@dataclass(frozen=True)
class Batch:
    """Judged groups in order of admission: what one update trains on."""

    rollouts: Rollouts
    rewards: Annotated[NDArray[np.float32], "PG", "f"]  # NaN where the verifier failed
    reasons: tuple[tuple[str, ...], ...]  # [P] of [G]
    # what only some algorithms need (`Algorithm.needs`), None where nothing made it
    reference_logprobs: Annotated[NDArray[np.float32] | None, "PGT", "f"] = (
        None  # of the tokens, as `Rollouts.logprobs`
    )
    values: Annotated[NDArray[np.float32] | None, "PGT", "f"] = None  # of the state before each token
    baseline: Annotated[NDArray[np.float32] | None, "P", "f"] = None  # reward of the greedy completion; NaN: failed
    penalties: Annotated[NDArray[np.float32] | None, "PGT", "f"] = None  # off the reward at each token, masked ones too

    def __len__(self) -> int:
        return len(self.rollouts.problems)

    @property
    def with_signal(self) -> NDArray[np.bool_]:
        """[P]: groups whose known rewards differ; the others have nothing to teach."""
        unknown = np.isnan(self.rewards)
        highest = np.where(unknown, -np.inf, self.rewards).max(axis=1, initial=-np.inf)
        lowest = np.where(unknown, np.inf, self.rewards).min(axis=1, initial=np.inf)
        differ: NDArray[np.bool_] = highest > lowest
        return differ

    @property
    def judged(self) -> NDArray[np.bool_]:
        """[P]: groups with a known reward, and a known baseline where they have one."""
        known = (~np.isnan(self.rewards)).any(axis=1)
        return np.asarray(known if self.baseline is None else known & ~np.isnan(self.baseline))

    def teaching(self, *, every_group: bool) -> NDArray[np.bool_]:
        """[P]: groups that an update learns from: judged ones whose rewards differ, or ``every_group`` of them."""
        return self.judged if every_group else self.judged & self.with_signal

    @property
    def returns(self) -> NDArray[np.float32]:
        """[P, G] rewards less the penalties of all tokens."""
        if self.penalties is None:
            return self.rewards
        return np.asarray(self.rewards - self.penalties.sum(axis=2, dtype=np.float32))

    def select(self, groups: Sequence[int]) -> "Batch":
        """The named groups, in the order given."""
        selected: Batch = rows_of(self, list(groups))
        return selected


@dataclass(frozen=True)
class Learned:
    """The outcome of one update."""

    step: int  # the policy version that it made
    applied: bool  # False: nothing to learn from, or refused
    refused: str = ""  # why a non-finite update was not applied
    refusals: int = 0  # such updates in a row
    said: str = ""  # of memory that is short, for people
    groups: int = 0  # that it trained on
    metrics: Mapping[str, float] = field(default_factory=dict)  # what is logged of it: docs/metrics.md
    kl_coefficient: float | None = None  # of the divergence from the reference, for the next update; a policy's
    seconds: float = 0.0


def concatenate(batches: Sequence[Batch]) -> Batch:
    """Several batches as one, in order; the token axis grows to the longest.

    Raises:
        ValueError: there is none, or some have what others lack.
    """
    if not batches:
        raise ValueError("no batch to concatenate")
    joined: Batch = _joined(batches)
    return joined


def rows_of(of: Any, index: list[int]) -> Any:
    """These rows of a record whose every field has them, in the order given."""
    if isinstance(of, tuple):
        return tuple(of[row] for row in index) if of else ()
    if isinstance(of, np.ndarray):
        return of[index]
    if isinstance(of, dict):
        return {name: rows_of(each, index) for name, each in of.items()}
    if is_dataclass(of) and not isinstance(of, type):
        return replace(of, **{each.name: rows_of(getattr(of, each.name), index) for each in fields(of)})
    return of  # a figure of them all


def _joined(parts: Sequence[Any]) -> Any:
    """The rows of several records as one record."""
    first = parts[0]
    if first is None:
        return None
    if isinstance(first, tuple):
        return tuple(row for part in parts for row in part)
    if isinstance(first, np.ndarray):
        longest = np.max([part.shape for part in parts], axis=0)[1:]
        return np.concatenate(
            [
                np.pad(part, [(0, 0), *((0, n - m) for n, m in zip(longest, part.shape[1:], strict=True))])
                for part in parts
            ]
        )
    if isinstance(first, Rollouts | Batch):
        given = {of.name: [getattr(part, of.name) for part in parts] for of in fields(first)}
        for name, values in given.items():
            if len({each is None or (isinstance(each, tuple) and not each) for each in values}) > 1:
                raise ValueError(f"{name}: some of what is joined has it, and some has not")
        return replace(first, **{name: _joined(values) for name, values in given.items()})
    return sum(parts)
