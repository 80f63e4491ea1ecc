"""The critic on its workers: one trains the value model beside the policy, others or the same one score with it."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from infra.cluster.cancellation import cancellation_check
from infra.cluster.resident import drop, resident
from infra.cluster.timeline import waiting_for_weights
from infra.home import rlvf_home
from infra.weights.version import PolicyVersion
from rl.algorithm_config import AlgorithmSpec
from rl.algorithms.gae import monte_carlo
from rl.config import PolicyConfig
from rl.critic_config import CriticConfig
from rl.records import Batch, Learned, Rollouts
from tasks.calls.start import load_start
from tasks.calls.trained import Trained

if TYPE_CHECKING:
    from rl.learning.critic import CriticLearner
    from rl.learning.scoring import Scoring
    from rl.model.value import ValueModel


class BrokenCriticError(RuntimeError):
    """A value model whose values are not finite."""


@dataclass(frozen=True, kw_only=True)
class Critic(Trained["CriticLearner"]):
    """What determines how the value model is trained. It begins as the model that the run starts from."""

    role: ClassVar[str] = "critic"
    call: ClassVar[str] = "train_critic"
    folder: ClassVar[str] = "critic"

    algorithm: AlgorithmSpec
    critic: CriticConfig

    def advance(self, step: int, batch: Batch) -> Learned:
        """The critic's update: make version ``step + 1`` from ``step``, by a batch with values, and save it, if it is
        its turn; if it was made before, return the record of that update."""
        from rl.learning.shaping import shaped

        def work(learner: "CriticLearner") -> Learned:
            learnt_from = shaped(batch, self.algorithm, self.sampling.limit, self.algorithm.kl.coefficient)
            assert learnt_from.values is not None
            algorithm, values = self.algorithm.algorithm, learnt_from.values
            aim = algorithm.estimates(learnt_from) + values
            return learner.update(learnt_from, aim, self.critic, seen=monte_carlo(learnt_from) + values)

        return self._advance(step, {}, work)

    def _fresh(self) -> "CriticLearner":
        from rl.learning.critic import CriticLearner
        from rl.model.value import value_model
        from rl.value_loading import whole

        return CriticLearner(value_model(load_start(self.source, whole(self.policy))), self.optimizer)

    def _saved(self, checkpoint: Path, _: Callable[[str], None]) -> "CriticLearner":
        from rl.learning.critic import CriticLearner
        from rl.value_loading import load_value_model

        return CriticLearner(load_value_model(str(checkpoint), self.policy, master=True), self.optimizer)


@dataclass
class _Resident:
    """A worker's resident value model."""

    model: "ValueModel"
    scoring: "Scoring"
    version: PolicyVersion


@dataclass(frozen=True)
class Valuer:
    """What determines values; the model is held resident by the worker on which `value` is called."""

    policy: PolicyConfig
    patience: float = 300.0  # seconds that the storage may be away

    def value(self, version: PolicyVersion, rollouts: Rollouts) -> NDArray[np.float32]:
        """[P, G, T] the value of the state before each token by this version of the critic, 0 past a completion's
        length. Raises BrokenCriticError and NoRoomError."""
        from rl.learning.critic import token_values

        check = cancellation_check()
        at = self._resident(version, check)
        found = at.scoring.scores(rollouts, lambda packed: token_values(at.model, packed), between_passes=check)
        if not np.isfinite(found).all():
            raise BrokenCriticError(
                f"critic {version} ({version.uri}) gives values that are not finite: its weights are broken, or its "
                "arithmetic overflows (see policy.dtype)"
            )
        return found

    def _resident(self, version: PolicyVersion, check: Callable[[], None]) -> _Resident:
        from infra.weights.mirror import Mirror
        from infra.weights.quantization import restored
        from rl.learning.scoring import Scoring
        from rl.value_loading import load_value_model

        versions = version.uri.rpartition("/")[0]
        cache = rlvf_home() / "cache" / "weights"
        mirror: Mirror = resident(
            "critic's mirror", versions, lambda: Mirror(versions, patience=self.patience, cache=cache)
        )

        def load() -> _Resident:
            with mirror.at(version, check) as found:
                model = load_value_model(str(mirror.root), self.policy, weights=restored(found))
            return _Resident(model, Scoring(model), version)

        key = self.policy.model_copy(update={"model": ""}), versions, version.files
        with waiting_for_weights() as waiting:
            kept = resident("values", key, load)
            if kept.version != version:
                try:
                    with mirror.at(version, check) as found:
                        kept.model.load_weights(restored(found))
                except BaseException:
                    drop("values")  # the weights may be a mixture of two versions
                    raise
                kept.version = version
            waiting.fetched.add(mirror.take_fetched())
        return kept
