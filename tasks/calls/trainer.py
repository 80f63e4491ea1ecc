"""The trainer: it updates the policy, saves it, and publishes its weights."""

import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import JsonValue

from infra import disk
from infra.cluster.dispatch import leave_thread
from infra.cluster.resident import drop, resident, resident_now
from infra.runs import checkpoints
from infra.runs.checkpoints import MODEL, CheckpointConfig, base_uri
from infra.runs.remains import refuse_to_begin_anew
from infra.security.secrets import masked
from infra.storage import place, store
from infra.storage.fence import Fence
from infra.storage.manifest import NotThere
from infra.storage.retry_policy import RetryPolicy
from infra.weights.version import Published, SyncConfig
from rl.config import TINY, LossConfig, PolicyConfig, SamplingConfig
from rl.learning.schedules import decayed
from rl.optimizer_config import OptimizerConfig
from rl.records import Batch, Learned
from tasks.calls.start import take_checked

if TYPE_CHECKING:
    from infra.weights.difference import Weights
    from infra.weights.publisher import Publisher
    from rl.learning.learner import Learner
    from rl.model.policy import Policy


class StepsLostError(RuntimeError):
    """The trainer that had made a version is gone, and no checkpoint holds it: the steps since the newest one are to be
    made again."""


@dataclass(frozen=True)
class Begun:
    """Where a trainer stands when a run starts."""

    step: int
    learned: Learned | None  # by the update that made this version
    figures: dict[str, float]  # of the batch that it learned from
    warnings: tuple[str, ...]
    vocabulary: int  # rows of the embedding: token ids are below
    parameters: int
    trained: int  # of these


_learning = threading.Lock()  # weights are not read while an update changes them, however many threads a worker has


@dataclass(frozen=True)
class Trainer:
    """What determines a trainer's work; the learner and the publisher that its methods work with are held resident by
    the worker on which they are called."""

    run_uri: str
    source: str  # where version 0 comes from: a hub id, a folder, or the URI of a stored one
    policy: PolicyConfig
    optimizer: OptimizerConfig
    loss: LossConfig
    sampling: SamplingConfig  # of the generators
    checkpoint: CheckpointConfig
    sync: SyncConfig
    window: int  # versions that a generator may be behind
    steps: int  # of the whole run, over which the learning rate decays
    fence: Fence  # of the session that trains: once another has taken the run, nothing is written any more
    seed: int = 0  # of fresh adapters

    def begin(self) -> Begun:
        """Load the newest checkpoint, or version 0 and save it as the first one. Raises CheckpointsLostError."""
        self._check()
        drop("learner")
        _drop_publisher()
        learner, warnings = self._learner(None)
        saved = store.read_manifest(place.join(checkpoints.state_uri(self.run_uri), str(learner.step)))
        figures: Any = saved.meta["figures"]
        model = learner.policy.model
        embedding: Any = model.get_input_embeddings()
        trained = sum(parameter.numel() for parameter in learner.parameters)
        return Begun(
            learner.step,
            learner.learned,
            figures,
            tuple(warnings),
            len(embedding.weight),
            parameters=model.num_parameters(),
            trained=trained,
        )

    def update(self, step: int, batch: Batch, figures: Mapping[str, float]) -> Learned:
        """Make version ``step + 1`` from ``step`` and save it, if it is its turn; if it was made before, return
        the record of that update.

        ``figures`` of the batch are kept with the checkpoint, so that a run that is killed before they are logged has
        them.
        """
        given = batch, self.loss, self.sampling.temperature, self.sampling.limit
        return self._make(step, lambda learner: learner.update(*given), figures)

    def _make(self, step: int, change: Callable[["Learner"], Learned], figures: Mapping[str, float]) -> Learned:
        started = time.perf_counter()
        self._check()  # the resident learner may be that of the session which took the run
        with _learning:
            learner, _ = self._learner(step)
            if learner.step == step + 1:
                assert learner.learned is not None  # every update leaves its record
                return learner.learned
            try:
                learner.decay = decayed(self.optimizer.decay, step, self.steps)
                learned = change(learner)
                learner.learned = learned = replace(learned, seconds=time.perf_counter() - started)
                if learner.step % self.checkpoint.every == 0:
                    self._save(learner, figures)
            except BaseException:
                drop("learner")  # it may be half-way between two versions
                raise
            return learned

    def publish(self, step: int) -> Published:
        """Publish version ``step``, of the last update or the one before. The next update may run meanwhile."""
        self._check()
        with _learning:
            weights = self._weights_at(step, self._learner(step)[0])
            publisher = resident("publisher", self._published_by(), self._publisher)
        leave_thread()
        return publisher.publish(step, weights)

    def mend(self, step: int, damaged: Sequence[str]) -> None:
        """Publish version ``step``, the last that was published, once more and whole: generators found these folders
        damaged, or missed some."""
        self._check()
        with _learning:
            publisher = resident("publisher", self._published_by(), self._publisher)
            weights = None if publisher.has_published else self._weights_at(step, self._learner(None)[0])
        leave_thread()
        if weights is not None:  # this process is new
            publisher.publish(step, weights)
        publisher.mend(damaged)

    def export(self, step: int, name: str = MODEL, meta: Mapping[str, JsonValue] | None = None) -> str:
        """Store version ``step``, the trainer's last, for everybody who loads models with transformers; returns where.
        With the result of a run, its checkpoint is there too."""
        self._check()
        learner, _ = self._learner(step)
        assert learner.step == step
        uri = place.join(self.run_uri, name)
        if name == MODEL and step % self.checkpoint.every:
            with _learning:
                self._save(learner, {})
        with _learning, store.scratch(self.run_uri) as folder:
            self._write(learner.policy, folder)
            said = {"step": step, **(meta or {})}
            store.write_folder(uri, folder, meta=said, move=True, fence=self.fence, flat=True)  # for whoever copies it
        return uri

    def _write(self, policy: "Policy", folder: Path) -> None:
        """Write the model for whoever loads it."""
        from rl.model.policy import save_policy

        save_policy(policy, folder, policy.dtype)

    def _check(self) -> None:
        """Raise LockLostError if another session has the run by now."""
        RetryPolicy(self.sync.patience)(self.fence.check)

    def _learner(self, step: int | None) -> tuple["Learner", list[str]]:
        """The resident learner at version ``step`` or the one after it, from the newest checkpoint if it must be loaded
        (whatever that holds if ``step`` is None), with the warnings that loading gave. A run without a checkpoint
        begins with version 0, which becomes its first. Raises StepsLostError, CheckpointsLostError and BaseLost."""
        from rl.learning.learner import Learner
        from rl.model.memory import reserve

        warnings: list[str] = []

        def load() -> Learner:
            saved = checkpoints.newest(self.run_uri, warn=warnings.append)
            if saved is None:
                refuse_to_begin_anew(self.run_uri, warnings)
                learner = Learner(self._fresh(), self.optimizer)
                reserve(learner.standing, learner.policy.device)
                self._save(learner, {})
                return learner
            drop("checked")
            with saved:
                learner = Learner(self._saved_policy(saved.path, warnings.append), self.optimizer)
                learner.restore(saved.path)
            reserve(learner.standing, learner.policy.device)
            return learner

        learner = resident("learner", self, load)
        if step is not None and learner.step not in (step, step + 1):
            drop("learner")
            learner = resident("learner", self, load)
            if learner.step not in (step, step + 1):
                raise self._steps_lost(learner.step, step)
        return learner, warnings

    def _fresh(self) -> "Policy":
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
        from rl.loading import load_policy
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

    def _steps_lost(self, newest: int, needed: int) -> StepsLostError:
        return StepsLostError(
            f"{masked(self.run_uri)}: version {needed} is lost with the trainer that had made it; the newest "
            f"checkpoint is of version {newest}"
        )

    def _save(self, learner: "Learner", figures: Mapping[str, float]) -> None:
        with store.scratch(self.run_uri) as folder:
            learner.save(folder)
            meta: dict[str, JsonValue] = {"figures": dict(figures)}
            kept, patience = self.checkpoint.keep_last, self.sync.patience
            checkpoints.save(self.run_uri, learner.step, folder, meta, kept, patience=patience, fence=self.fence)

    @property
    def _starts_public(self) -> bool:
        """Whether version 0 is a model that every machine has, so that it is not published. Adapters always are."""
        return self.sync.base == "public" and not self.policy.lora.rank

    def _published_by(self) -> tuple[Any, ...]:
        return self.run_uri, self.sync, self.window, self.fence

    def _publisher(self) -> "Publisher":
        from infra.weights.publisher import Publisher
        from rl.model.policy import save_files
        from tasks.calls.published import public_model

        learner, _ = self._learner(None)
        files = Path(tempfile.mkdtemp(dir=disk.own_folder()))  # not a hold on the policy, which may be replaced
        save_files(learner.policy, files)
        return Publisher(
            self.run_uri,
            self.sync,
            window=self.window,
            files=files,
            sampling=self.sampling.model_dump(mode="json"),
            public=public_model(self.source, self.policy) if self._starts_public else None,
            fence=self.fence,
        )

    def _weights_at(self, step: int, learner: "Learner") -> "Weights":
        """The weights of version ``step``, the learner's or a kept one, as they are published."""
        from rl.model.policy import dtype_name, read_weights
        from tasks.calls.published import as_published

        dtype = dtype_name(learner.policy.dtype) if self.sync.dtype == "auto" else self.sync.dtype
        if learner.step == step:
            return as_published(learner.policy.weights(), dtype, learner.policy)
        try:
            with checkpoints.load(self.run_uri, step) as folder:  # the next update was faster
                return as_published(read_weights(folder.path), dtype, learner.policy)
        except NotThere:
            raise self._steps_lost(learner.step, step) from None


def _drop_publisher() -> None:
    """Drop the publisher of a session that has ended; others may have published since."""
    from infra.weights.publisher import Publisher

    earlier = resident_now("publisher")
    if isinstance(earlier, Publisher):
        earlier.close()
        drop("publisher")
