"""A scorer: log-probs of completions under a policy version that is not trained, such as the reference of a KL."""

from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from infra.cluster.cancellation import cancellation_check
from infra.cluster.resident import drop
from infra.cluster.timeline import waiting_for_weights
from infra.weights.version import PolicyVersion
from rl.records import Rollouts
from tasks.calls.generator import BrokenPolicyError
from tasks.calls.held import held
from tasks.calls.weights import Weights

if TYPE_CHECKING:
    from rl.learning.scoring import Scoring


@dataclass(frozen=True)
class ReferenceSchedule:
    """Which version is the reference policy of a step."""

    every: int = 0  # 0: version 0; else the last multiple of this that there is when generation for the step may begin
    staleness: int = 0

    def version(self, step: int) -> int:
        """That of the batch that version ``step`` is updated with."""
        return max(0, step - self.staleness) // self.every * self.every if self.every else 0

    def versions(self, first: int, newest: int) -> set[int]:
        """Those of the batch for version ``first`` and of all later ones that may begin when ``newest`` is there."""
        return {self.version(step) for step in range(first, newest + self.staleness + 1)}


@dataclass(frozen=True)
class Scorer:
    """What determines the scores; the policy that gives them is held resident by the worker beside that of a generator,
    which may be another version."""

    role: ClassVar = "reference"

    weights: Weights
    temperature: float  # of the softmax, that of the generators

    def score(self, version: PolicyVersion, rollouts: Rollouts) -> NDArray[np.float32]:
        """[P, G, T] log-probs of the completions' tokens, 0 past their lengths. Of the rollouts only prompts, tokens
        and lengths are read.

        Raises:
            BrokenPolicyError: log-probs are not finite.
            NoRoomError: one sequence does not fit into the device's memory.
        """
        check = cancellation_check()
        mirror = self.weights.copy(version)  # let go of after loading: what is frozen needs no differences
        with ExitStack() as stack:
            with waiting_for_weights(mirror.take_fetched):

                def load() -> "Scoring":
                    from rl.learning.scoring import Scoring

                    return Scoring(self.weights.load(mirror, version, check))

                key = self.weights.key(version), version.id
                scoring = stack.enter_context(held(self.role, key, load, again=True))
            found = scoring.logprobs(rollouts, self.temperature, between_passes=check)
        if not np.isfinite(found).all():
            raise BrokenPolicyError(
                f"{self.role} {version} ({version.uri}) gives log-probs that are not finite: its weights are broken, "
                "or its arithmetic overflows (see policy.dtype)"
            )
        return found


@dataclass(frozen=True)
class Referee(Scorer):
    """A scorer of what two generators disagree about: it is asked seldom, and keeps no policy for the next time."""

    role: ClassVar = "referee"

    def score(self, version: PolicyVersion, rollouts: Rollouts) -> NDArray[np.float32]:
        """As `Scorer.score`."""
        try:
            return super().score(version, rollouts)
        finally:
            drop(self.role)
