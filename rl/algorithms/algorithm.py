"""The contract of an algorithm: its options are its fields, its formulas its methods.

Legend: P groups, G completions per group, T tokens of a completion, N completion tokens of a forward pass, M of a
batch: of those that the policy wrote (`Rollouts.trained`). r: reward; pi: the policy being trained; old: the policy
that its ratio is taken to, which is the behaviour policy mu that sampled or the proximal one
(`AlgorithmConfig.proximal`); rho = pi / old per token. Loading this module does not import torch: a command line is
read with these options.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

from rl.algorithms.gae import returns_to_go
from rl.records import Batch

if TYPE_CHECKING:
    from torch import Tensor

Floats = NDArray[np.float32]
Aggregation = Literal["token", "sequence", "constant"]  # what weighs alike: every token, or every completion


@dataclass(frozen=True)
class Tokens:
    """What a loss is computed from."""

    logprobs: "Tensor"  # [N] log pi, with its gradient
    old: "Tensor"  # [N] log of the old policy
    advantage: "Tensor"  # [N]
    sequence_log_ratio: "Tensor | None" = (
        None  # [N] log(pi / old), mean over the token's completion: see `Algorithm.by_sequence`
    )


@dataclass(frozen=True)
class TokenLoss:
    """Per-token terms; the loss is ``(weight * value).sum()`` over the whole batch."""

    value: "Tensor"  # [N]
    metrics: Mapping[str, "Tensor"] = field(default_factory=dict)  # [N] each; policy/<name> is the mean over tokens


class Algorithm(BaseModel, ABC):
    """A policy-gradient loss with its advantages and the weights of its tokens."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    summary: ClassVar[str]  # one line, for `--help`
    needs: ClassVar[frozenset[str]] = frozenset()  # fields of `Batch` that it reads beside rollouts and rewards
    aggregation: ClassVar[Aggregation] = "token"
    by_sequence: ClassVar[bool] = False  # whether its loss reads `Tokens.sequence_log_ratio`
    every_group: ClassVar[bool] = False  # whether it learns from groups whose rewards are all equal, too
    trust_region: ClassVar[bool] = False  # whether its loss clips or gates the ratio, to keep pi near old
    overlong_share: ClassVar[float] = 0.0  # share of max_tokens in which rewards fall, where nothing else is given

    @abstractmethod
    def advantages(self, batch: Batch) -> Floats:
        """[P, G] or [P, G, T] advantages, of `Batch.returns`; an unknown reward is NaN, its advantage 0."""

    def value_targets(self, batch: Batch) -> Floats:
        """[P, G, T] returns that the value model is trained towards, of an algorithm that needs `Batch.values`: the
        Monte-Carlo ones where it does not say otherwise."""
        return returns_to_go(batch)

    def token_weights(self, lengths: NDArray[np.int32], max_tokens: int) -> Floats:
        """[P, G] weight of each token of a completion, by its `aggregation`, for completions of at most ``max_tokens``,
        in which the policy wrote ``lengths`` [P, G]; those without tokens take no part. They sum to 1 over all tokens,
        ``constant`` ones where every completion has ``max_tokens``."""
        count = max(1, int((lengths > 0).sum()))
        if self.aggregation == "sequence":
            return np.asarray((lengths > 0) / (count * np.maximum(lengths, 1)), dtype=np.float32)
        total = count * max_tokens if self.aggregation == "constant" else max(1, int(lengths.sum()))
        return np.full(lengths.shape, 1 / total, dtype=np.float32)

    @abstractmethod
    def token_loss(self, tokens: Tokens) -> TokenLoss:
        """The terms of [N] tokens. Each follows from its own token alone, because tokens are taken in chunks."""

    def token_mask(self, log_ratio: Floats, advantage: Floats) -> NDArray[np.bool_]:
        """[M]: which tokens an optimizer step learns from, by their log-ratios pi / mu before it and their advantages;
        the weights of the others stay as they are. Where it is not overridden, the log-ratios are not computed."""
        return np.ones(np.broadcast(log_ratio, advantage).shape, dtype=np.bool_)


def group_means(rewards: Floats) -> Floats:
    """[P, 1] mean of the known rewards of each group; 0 where none is."""
    known = ~np.isnan(rewards)
    sums = np.where(known, rewards, 0).sum(axis=1, keepdims=True)
    return np.asarray(sums / np.maximum(known.sum(axis=1, keepdims=True), 1))


def centred(rewards: Floats) -> Floats:
    """[P, G] rewards less the mean of their group, over those that are known; 0 for the others."""
    return np.where(np.isnan(rewards), 0, rewards - group_means(rewards)).astype(np.float32)


def standardised(rewards: Floats) -> Floats:
    """[P, G] rewards less the mean of their group, divided by its sample standard deviation + 1e-6 (GRPO, arXiv
    2402.03300, section 4.1.2), over those that are known; 0 for the others."""
    others = np.maximum((~np.isnan(rewards)).sum(axis=1, keepdims=True) - 1, 1)
    difference = centred(rewards)
    deviation = np.sqrt((difference**2).sum(axis=1, keepdims=True) / others)
    return np.asarray(difference / (deviation + 1e-6), dtype=np.float32)
