"""The contract of an algorithm: its options are its fields, its formulas its methods.

Legend: P groups, G completions per group, N completion tokens. r: reward; pi: the policy being trained; mu: the
behaviour policy that sampled; rho = pi / mu per token. Loading this module does not import torch: a
command line is read with these options.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict

if TYPE_CHECKING:
    from torch import Tensor


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

    @abstractmethod
    def advantages(self, rewards: NDArray[np.float32]) -> NDArray[np.float32]:
        """[P, G] advantages of [P, G] rewards; an unknown reward is NaN, its advantage 0."""

    @abstractmethod
    def token_weights(self, lengths: NDArray[np.int32]) -> NDArray[np.float32]:
        """[P, G] weight of each token of a completion, summing to 1 over all tokens of the batch. A completion without
        tokens takes no part."""

    @abstractmethod
    def token_loss(self, logprobs: "Tensor", behaviour: "Tensor", advantage: "Tensor") -> TokenLoss:
        """The terms of [N] tokens: log pi with its gradient, log mu, and the advantage of each token's completion.

        Each term follows from its own token alone, because tokens are taken in chunks.
        """


def centred(rewards: NDArray[np.float32]) -> NDArray[np.float32]:
    """[P, G] rewards less the mean of their group, over those that are known; 0 for the others."""
    known = ~np.isnan(rewards)
    mean = np.where(known, rewards, 0).sum(axis=1, keepdims=True) / np.maximum(known.sum(axis=1, keepdims=True), 1)
    result: NDArray[np.float32] = np.where(known, rewards - mean, 0).astype(np.float32)
    return result
