"""A reward model's scores of completions."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from infra.cluster.resident import resident
from infra.storage import store
from rl.config import PolicyConfig
from rl.optimizer_config import OptimizerConfig
from rl.records import Problem

if TYPE_CHECKING:
    from rl.learning.passes import Accumulation
    from rl.model.policy import Policy


@dataclass(frozen=True)
class RewardModel:
    """What determines the scores; the model is held resident by the worker that computes them."""

    uri: str  # of the stored folder
    digest: str  # of its files

    def score(
        self, problems: Sequence[Problem], texts: Sequence[Sequence[str]], ended: NDArray[np.bool_]
    ) -> NDArray[np.float32]:
        """[P, G] scores of the completions ``texts`` [P] of [G] behind the problems' prompts, without a verifier's
        instructions, as those that it was trained on. One that did not end has no end token.

        Raises UnknownModelError where what lies there is no reward model."""
        from rl.learning.fitting import scores
        from rl.learning.objectives import BradleyTerry
        from rl.learning.supervised import answered

        policy, accumulation = resident(f"reward model {self.uri}", self, self._load)
        shown = answered(policy, problems, texts, ended)
        return scores(policy, accumulation, shown, BradleyTerry())[0].astype(np.float32)

    def _load(self) -> "tuple[Policy, Accumulation]":
        from rl.learning.passes import Accumulation
        from rl.reward_model import load_reward_model

        with store.read_folder(self.uri) as folder:
            policy = load_reward_model(str(folder.path), PolicyConfig())
        for parameter in policy.model.parameters():
            parameter.requires_grad_(False)
        return policy, Accumulation(policy, OptimizerConfig(checkpointing="off"))
