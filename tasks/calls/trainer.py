"""The trainer: it updates the policy, saves it, and publishes its weights."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import JsonValue

from infra.runs.checkpoints import MODEL, base_uri
from infra.storage import place, store
from rl.config import TINY
from rl.learning.algorithm_config import AlgorithmSpec
from rl.records import Batch, Learned
from tasks.calls.scorer import ReferenceSchedule
from tasks.calls.start import take_checked
from tasks.calls.trained import Trained, learning

if TYPE_CHECKING:
    from infra.weights.whole import PublicModel
    from rl.learning.learner import Learner
    from rl.model.policy import Policy


@dataclass(frozen=True, kw_only=True)
class Trainer(Trained["Learner"]):
    """What determines a trainer's work."""

    role: ClassVar[str] = "learner"
    call: ClassVar[str] = "train"

    algorithm: AlgorithmSpec
    seed: int = 0  # of fresh adapters
    reference: ReferenceSchedule | None = None  # which versions must stay for it; None without one

    def advance(self, step: int, batch: Batch, figures: Mapping[str, float]) -> Learned:
        """Make version ``step + 1`` from ``step`` and save it, if it is its turn; if it was made before, return
        the record of that update.

        ``figures`` of the batch are kept with the checkpoint, so that a run that is killed before they are logged has
        them.
        """

        def work(learner: "Learner") -> Learned:
            return learner.update(batch, self.algorithm, self.sampling.temperature, self.sampling.limit)

        return self._advance(step, figures, work)

    def export(self, step: int, name: str = MODEL, meta: Mapping[str, JsonValue] | None = None) -> str:
        """Store version ``step``, the trainer's last, for everybody who loads models with transformers; returns where.
        With the result of a run, its checkpoint is there too."""
        self._check()
        uri = place.join(self.run_uri, name)
        if name == MODEL:
            self.keep(step)
        with learning, self._learner(step) as (learner, _), store.scratch(self.run_uri) as folder:
            assert learner.step == step
            self._write(learner.policy, folder)
            said = {"step": step, **(meta or {})}
            store.write_patiently(uri, folder, said, self.sync.patience, self.fence, flat=True)  # for whoever copies it
        return uri

    def _write(self, policy: "Policy", folder: Path) -> None:
        """Write the model for whoever loads it."""
        from rl.model.policy import save_policy

        save_policy(policy, folder, policy.dtype)

    def _fresh(self) -> "Learner":
        from rl.learning.learner import Learner

        return Learner(self._fresh_policy(), self.optimizer)

    def _saved(self, checkpoint: Path, warn: Callable[[str], None]) -> "Learner":
        from rl.learning.learner import Learner

        return Learner(self._saved_policy(checkpoint, warn), self.optimizer)

    @property
    def _public(self) -> "PublicModel | None":
        from tasks.calls.published import public_model

        if self.sync.base != "public" or self.policy.lora.rank:  # adapters are always published
            return None
        return public_model(self.source, self.policy)

    def _fresh_policy(self) -> "Policy":
        """Version 0. The frozen model of adapters is stored with the run, where machines do not load it themselves."""
        from rl.model.lora import draw_adapters
        from tasks.calls.base import store_base

        policy = take_checked(self.source, self.policy, self.fence)
        if policy.base is None:
            return policy
        draw_adapters(policy.model, self.seed)
        named = base_uri(self.run_uri) if self.policy.model == TINY else self.policy.model
        policy = replace(policy, base=replace(policy.base, model=named))
        if self.sync.base == "stored":
            store_base(self.run_uri, policy, self.sync.patience, self.fence)
        return policy

    def _saved_policy(self, checkpoint: Path, warn: Callable[[str], None]) -> "Policy":
        """That of a checkpoint. A frozen model that is missing or damaged is stored anew."""
        from rl.loading.policy import load_policy
        from tasks.calls.base import BaseDamaged, base_of, mended_base

        if not self.policy.lora.rank:
            return load_policy(str(checkpoint), self.policy, master=True)
        load = partial(load_policy, config=self.policy, master=True, adapters=checkpoint)
        public = self.policy.model if self.sync.base == "public" else None
        try:
            with base_of(self.run_uri, public, self.sync.patience) as path:
                return load(path)
        except BaseDamaged as error:
            policy = mended_base(self.run_uri, self.source, load, error, self.sync.patience, self.fence)
            warn(f"{error}; it was stored anew from {self.source}")
            return policy

    def _published_by(self) -> tuple[Any, ...]:
        return *super()._published_by(), self.reference

    def _kept(self, newest: int) -> set[int]:
        """The references of batches that are on their way, or will be when the run resumes from a checkpoint."""
        back = self.checkpoint.every * (self.checkpoint.keep_last + self.beside)
        return set() if self.reference is None else self.reference.versions(max(0, newest - back), newest)
