"""The critic on its workers: one trains the value model beside the policy, others or the same one score with it."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from numpy.typing import NDArray

from infra.cluster.cancellation import cancellation_check
from infra.cluster.resident import drop, resident
from infra.cluster.timeline import waiting_for_weights
from infra.runs.checkpoints import CRITIC
from infra.weights.version import PolicyVersion
from rl.algorithms.gae import returns_to_go
from rl.config import PolicyConfig
from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.critic_config import CriticConfig
from rl.records import Batch, Learned, Rollouts
from tasks.calls.held import held
from tasks.calls.start import load_start
from tasks.calls.trained import Trained
from tasks.calls.weights import Weights, versions_of

if TYPE_CHECKING:
    from rl.learning.critic import CriticLearner
    from rl.learning.scoring import Scoring
    from rl.model.parking import ModelMemory
    from rl.model.value import ValueModel


class BrokenCriticError(RuntimeError):
    """A value model whose values are not finite."""


@dataclass(frozen=True, kw_only=True)
class Critic(Trained["CriticLearner"]):
    """What determines how the value model is trained. It begins as the model that the run starts from."""

    role: ClassVar[str] = "critic"
    call: ClassVar[str] = "train_critic"
    folder: ClassVar[str] = CRITIC

    algorithm: AlgorithmSpec
    critic: CriticConfig

    def advance(self, step: int, batch: Batch, kl_coefficient: float | None = None) -> Learned:
        """The critic's update: make version ``step + 1`` from ``step``, by a batch with values, and save it, if it is
        its turn; if it was made before, return the record of that update. ``kl_coefficient``: that by which the policy
        is updated meanwhile, where it is adapted; None before the first update."""
        from rl.learning.shaping import shaped

        def work(learner: "CriticLearner") -> Learned:
            coefficient = self.algorithm.kl.coefficient if kl_coefficient is None else kl_coefficient
            learnt_from = shaped(batch, self.algorithm, self.sampling.limit, coefficient)
            targets = self.algorithm.algorithm.value_targets(learnt_from)
            return learner.update(learnt_from, targets, self.critic, monte_carlo=returns_to_go(learnt_from))

        return self._advance(step, {}, work)

    def _fresh(self) -> "CriticLearner":
        from rl.learning.critic import CriticLearner
        from rl.model.value import value_model

        return CriticLearner(value_model(load_start(self.source, self.policy.whole)), self.optimizer)

    def _saved(self, checkpoint: Path, _: Callable[[str], None]) -> "CriticLearner":
        from rl.learning.critic import CriticLearner
        from rl.loading.value import load_value_model

        return CriticLearner(load_value_model(str(checkpoint), self.policy, master=True), self.optimizer)


@dataclass
class _Resident:
    """A worker's resident value model."""

    model: "ValueModel"
    scoring: "Scoring"
    version: PolicyVersion

    @property
    def memory(self) -> "ModelMemory":
        return self.model.memory


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
        with self._resident(version, check) as at:
            found = at.scoring.scores(rollouts, lambda packed: token_values(at.model, packed), between_passes=check)
        if not np.isfinite(found).all():
            raise BrokenCriticError(
                f"critic {version} ({version.uri}) gives values that are not finite: its weights are broken, or its "
                "arithmetic overflows (see policy.dtype)"
            )
        return found

    @contextmanager
    def _resident(self, version: PolicyVersion, check: Callable[[], None]) -> Iterator[_Resident]:
        from infra.weights.quantization import restored
        from rl.learning.scoring import Scoring
        from rl.loading.value import load_value_model

        weights = Weights(self.policy.whole, patience=self.patience)
        mirror = resident("critic's mirror", versions_of(version), lambda: weights.copy(version))

        def load() -> _Resident:
            with mirror.at(version, check) as found:
                model = load_value_model(str(mirror.root), weights.policy, weights=restored(found))
            return _Resident(model, Scoring(model), version)

        with ExitStack() as stack:
            with waiting_for_weights(mirror.take_fetched):
                kept = stack.enter_context(held("values", weights.key(version), load, again=True))
                if kept.version != version:
                    try:
                        with mirror.at(version, check) as found:
                            kept.model.load_weights(restored(found))
                    except BaseException:
                        drop("values")  # the weights may be a mixture of two versions
                        raise
                    kept.version = version
            yield kept
