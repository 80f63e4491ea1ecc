"""Scores of completions under a policy that is not trained: one number for each token, without a gradient.

Legend: P groups, G completions per group, T completion tokens, N tokens of a forward pass.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from rl.learning.logprobs import each_token, token_scores
from rl.learning.optimizer_config import OptimizerConfig
from rl.learning.packing import Packed
from rl.learning.passes import Accumulation, Passes
from rl.model.memory import yield_memory
from rl.model.parking import ModelMemory
from rl.model.policy import Policy
from rl.records import Rollouts


class Scoring:
    """Scores rollouts in packed rows. How they are packed follows from the rollouts and the kind of device alone, and
    not from what was scored before, so that the same leases have the same bits whoever scores them."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        config = OptimizerConfig(checkpointing="off")
        self.accumulation = Accumulation(policy, config)
        # nothing is kept for a backward pass: all layers count as checkpointed, and out of memory passes get shorter
        self.accumulation.passes = Passes(Passes.wanted(policy, config).positions, checkpointing=True)

    @property
    def memory(self) -> ModelMemory:
        """What its policy holds."""
        return self.policy.memory

    def logprobs(
        self, rollouts: Rollouts, temperature: float, between_passes: Callable[[], None] = lambda: None
    ) -> NDArray[np.float32]:
        """[P, G, T] log-probs of the completions' tokens after ``temperature``, as `scores` gives them."""
        return self.scores(rollouts, lambda packed: token_scores(self.policy, packed, temperature)[0], between_passes)

    def scores(
        self, rollouts: Rollouts, of: Callable[[Packed], Tensor], between_passes: Callable[[], None] = lambda: None
    ) -> NDArray[np.float32]:
        """[P, G, T] what ``of`` gives for the [N] tokens of each pass; 0 where the policy wrote none. Of the rollouts
        only prompts, tokens, lengths and which are trained are read. ``between_passes`` may raise.

        Raises:
            NoRoomError: not even one sequence at a time fits into the device's memory.
        """

        def score(packed: Packed) -> Tensor:
            between_passes()
            return of(packed)

        found = each_token(rollouts, range(len(rollouts.prompts)), self.accumulation, score)
        yield_memory(self.policy.device)
        return found
