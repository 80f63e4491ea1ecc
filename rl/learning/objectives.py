"""Losses of given completions by the score of each: its log-likelihood under the policy, or a reward model's reward.

Legend: P prompts, G completions of each: 1 that is shown, or 2, the chosen and the rejected one.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn.functional import softplus


@dataclass(frozen=True)
class Scored:
    """Completions as an objective sees them, in float64."""

    scores: Tensor  # [P, G]
    tokens: Tensor  # [P, G]: how many each has
    reference: Tensor  # [P, G]: their log-likelihoods under the start model


@dataclass(frozen=True)
class Terms:
    """A loss, and what is logged of it."""

    loss: Tensor  # scalar
    metrics: Mapping[str, Tensor]  # scalars
    count: int  # tokens, or pairs, that these are means over


class Objective(ABC):
    """What is minimised. `name` begins the names of its metrics."""

    name: ClassVar[str]
    of_rewards: ClassVar[bool] = False  # scores are rewards, else log-likelihoods: the sum over a completion's tokens
    with_reference: ClassVar[bool] = False  # it compares with the log-likelihoods under the start model
    linear: ClassVar[bool] = False  # in the scores, so that its gradient is known before they are

    @abstractmethod
    def terms(self, of: Scored) -> Terms:
        """The loss of these completions."""

    def gradient(self, of: Scored) -> Tensor:
        """[P, G]: of the loss with respect to the scores."""
        with torch.enable_grad():
            leaf = of.scores.detach().requires_grad_()
            (found,) = torch.autograd.grad(self.terms(replace(of, scores=leaf)).loss, leaf)
        return found


@dataclass(frozen=True)
class Imitation(Objective):
    """Supervised fine-tuning: L = -sum log pi(y | x) / sum |y|, nats per token of all completions together."""

    name: ClassVar[str] = "sft"
    linear: ClassVar[bool] = True

    def terms(self, of: Scored) -> Terms:
        loss = -of.scores.sum() / of.tokens.sum()
        return Terms(loss, {"loss": loss}, int(of.tokens.sum()))


@dataclass(frozen=True)
class DirectPreference(Objective):
    """Direct Preference Optimization (Rafailov et al., arXiv 2305.18290, equation 7): with the implicit reward r(x, y)
    = beta log pi(y | x) / pi_ref(y | x) and the margin m = r(x, chosen) - r(x, rejected), L = mean -log sigmoid(m)."""

    beta: float = 0.1

    name: ClassVar[str] = "dpo"
    with_reference: ClassVar[bool] = True

    def terms(self, of: Scored) -> Terms:
        rewards = self.beta * (of.scores - of.reference)
        loss, metrics = _compared(rewards)
        implicit = {"chosen_reward": rewards[:, 0].mean(), "rejected_reward": rewards[:, 1].mean()}
        return Terms(loss, {**metrics, **implicit}, len(rewards))


@dataclass(frozen=True)
class BradleyTerry(Objective):
    """A reward model of pairs (Bradley and Terry, 1952; Ouyang et al., arXiv 2203.02155, equation 1): L = mean -log
    sigmoid(r(x, chosen) - r(x, rejected))."""

    name: ClassVar[str] = "reward_model"
    of_rewards: ClassVar[bool] = True

    def terms(self, of: Scored) -> Terms:
        return Terms(*_compared(of.scores), len(of.scores))


def _compared(rewards: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss of pairs' rewards [P, 2], and how well they tell which is chosen: of equal ones half is told."""
    margin = rewards[:, 0] - rewards[:, 1]
    loss = softplus(-margin).mean()
    return loss, {"loss": loss, "accuracy": (margin.sign() + 1).mean() / 2, "margin": margin.mean()}
