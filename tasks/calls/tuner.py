"""The trainer of given examples: demonstrations, or pairs of completions."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from infra.cluster.resident import drop, resident
from infra.weights.version import SyncConfig
from rl.config import SamplingConfig
from rl.learning.algorithm_config import AlgorithmSpec
from rl.problems.examples import Example
from rl.records import Learned
from tasks.calls.start import load_start, weights_of
from tasks.calls.trainer import Trainer

if TYPE_CHECKING:
    from rl.learning.learner import Learner
    from rl.learning.objectives import Objective
    from rl.model.policy import Policy


@dataclass(frozen=True, kw_only=True)
class Tuner(Trainer):
    """A trainer that neither publishes nor samples; see `Trainer`."""

    algorithm: AlgorithmSpec = field(default_factory=AlgorithmSpec)
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    sync: SyncConfig = field(default_factory=SyncConfig)
    window: int = 1
    method: str  # sft, dpo or reward-model
    beta: float = 0.0  # of dpo
    max_tokens: int  # of a completion, at most

    def fit(self, step: int, examples: Sequence[Example], reference: NDArray[np.float64] | None) -> Learned:
        """Make version ``step + 1`` from ``step`` of these examples, and save it, as `advance` does; ``reference``
        [P, G]: the log-likelihoods of their completions under the start model, which DPO compares with."""
        from rl.learning.fitting import fit
        from rl.learning.supervised import as_rollouts

        def work(learner: "Learner") -> Learned:
            return fit(learner, as_rollouts(learner.policy, examples, self.max_tokens), self._objective, reference)

        return self._advance(step, {}, work)

    def measure(
        self, step: int, examples: Sequence[Example], reference: NDArray[np.float64] | None
    ) -> tuple[int, dict[str, float]]:
        """The metrics of these examples under version ``step``, the last that was made, and how many tokens, or pairs,
        they are means over. Raises StepsLostError."""
        from rl.learning.fitting import measured
        from rl.learning.supervised import as_rollouts

        self._check()
        with self._learner(step) as (learner, _):
            if learner.step != step:
                raise self._steps_lost(learner.step, step)
            shown = as_rollouts(learner.policy, examples, self.max_tokens)
            return measured(learner.policy, learner.accumulation, shown, self._objective, reference)

    def check(self, examples: Sequence[Example]) -> int:
        """How many of their completions are cut, before the run exists; its session takes the model that is loaded.

        Raises:
            UnknownModelError: it cannot be loaded, or not driven.
            ValueError: an example that there is no room for, or the optimizer needs a package that is not here.
        """
        from rl.learning.supervised import as_rollouts

        self.optimizer.check_installed()
        try:
            return int((~as_rollouts(self._start(), examples, self.max_tokens).ended).sum())
        except BaseException:
            drop("checked")
            raise

    def start_scores(self, examples: Sequence[Example]) -> NDArray[np.float64]:
        """[P, G]: log-likelihoods under the start model, of adapters the frozen one. It stays loaded until `begin`,
        which takes it."""
        from rl.learning.fitting import scores
        from rl.learning.passes import Accumulation
        from rl.learning.supervised import as_rollouts

        self._check()
        policy = self._start()
        shown = as_rollouts(policy, examples, self.max_tokens)
        return scores(policy, Accumulation(policy, self.optimizer), shown, self._objective)[0]

    @property
    def _objective(self) -> "Objective":
        from rl.learning.objectives import BradleyTerry, DirectPreference, Imitation

        made: dict[str, Callable[[], Objective]] = {
            "sft": Imitation,
            "dpo": lambda: DirectPreference(self.beta),
            "reward-model": BradleyTerry,
        }
        return made[self.method]()

    def _start(self) -> "Policy":
        """The model that the run starts from, as `take_checked` takes it."""
        drop("learner")  # two models would not fit
        drop("critic")
        return resident("checked", (self.source, self.policy, self.fence), self._load_start)

    def _load_start(self) -> "Policy":
        if not self._objective.of_rewards:
            return load_start(self.source, self.policy)
        from rl.loading.reward_model import load_reward_model

        with weights_of(self.source) as path:
            return load_reward_model(path, self.policy, master=True, fresh=True)

    def _fresh_policy(self) -> "Policy":
        if not self._objective.of_rewards:
            return super()._fresh_policy()
        policy = self._start()
        drop("checked")
        return policy

    def _saved_policy(self, checkpoint: Path, warn: Callable[[str], None]) -> "Policy":
        if not self._objective.of_rewards:
            return super()._saved_policy(checkpoint, warn)
        from rl.loading.reward_model import load_reward_model

        return load_reward_model(str(checkpoint), self.policy, master=True)

    def _write(self, policy: "Policy", folder: Path) -> None:
        """A whole model, adapters merged into it: what begins from it need not know how it was made."""
        if policy.base is None:
            super()._write(policy, folder)
            return
        from safetensors.torch import save_file

        from rl.model.lora import merged_weights
        from rl.model.policy import save_config, save_tokenizer

        save_config(policy, folder, policy.dtype)
        save_tokenizer(policy, folder)
        save_file(
            dict(merged_weights(policy.model, policy.dtype)), folder / "model.safetensors", metadata={"format": "pt"}
        )
