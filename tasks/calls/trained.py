"""A model in training on a worker: its learner, its checkpoints, and its versions as they are published. The policy
(`trainer.py`) and a critic (`critic.py`) are such models."""

import shutil
import tempfile
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from pydantic import JsonValue

from infra import disk
from infra.cluster.resident import drop, resident, resident_now
from infra.dispatch.dispatch import leave_thread
from infra.runs import checkpoints
from infra.runs.checkpoints import CheckpointConfig
from infra.runs.remains import none_as_old, refuse_to_begin_anew
from infra.security.secrets import masked
from infra.storage import place, store
from infra.storage.fence import Fence
from infra.storage.manifest import NotThere
from infra.storage.retry_policy import RetryPolicy
from infra.storage.store import Folder
from infra.weights.version import Published, SyncConfig
from rl.config import PolicyConfig, SamplingConfig
from rl.learning.optimizer_config import OptimizerConfig
from rl.learning.schedules import decayed
from rl.records import Learned
from tasks.calls.held import held
from tasks.calls.start import RunStart

if TYPE_CHECKING:
    from infra.weights.difference import Weights
    from infra.weights.publisher import Publisher
    from infra.weights.whole import PublicModel
    from rl.learning.optimized import Optimized


class StepsLostError(RuntimeError):
    """The trainer that had made a version is gone, and no checkpoint holds it: the steps since the newest one are to be
    made again."""


learning = threading.Lock()  # weights are not read while an update changes them, however many threads a worker has
L = TypeVar("L", bound="Optimized[Any]")


@dataclass(frozen=True, kw_only=True)
class Trained(ABC, Generic[L]):
    """What determines the work on a model that is trained; the learner and the publisher that the methods work with are
    held resident by the worker on which they are called."""

    role: ClassVar[str]  # names what is resident
    call: ClassVar[str]  # by which it is placed
    folder: ClassVar[str] = ""  # of the run, in which its versions and checkpoints lie; the run's own where empty

    run_uri: str
    source: str  # where version 0 comes from: a hub id, a folder, or the URI of a stored one
    policy: PolicyConfig
    optimizer: OptimizerConfig
    sampling: SamplingConfig  # of the generators
    checkpoint: CheckpointConfig
    sync: SyncConfig
    window: int  # versions that a reader may be behind
    steps: int  # of the whole run, over which the learning rate decays
    fence: Fence  # of the session that trains: once another has taken the run, nothing is written any more
    beside: bool = False  # whether other models are saved at the same steps: see `begin`

    @property
    def model_uri(self) -> str:
        """Where the versions and checkpoints of this model lie."""
        return place.join(self.run_uri, self.folder) if self.folder else self.run_uri

    def begin(self, at_most: int | None = None) -> RunStart:
        """Load the newest checkpoint, or version 0 and save it as the first one.

        Models that are trained together go on from a step that each has a checkpoint of: with ``at_most`` the newest
        one up to this step is loaded. One more checkpoint is kept of each than of a model alone, so that such a step is
        there whenever a run is killed. Nothing is removed: see `go_back`. Raises CheckpointsLostError.
        """
        from rl.model.policy import dtype_name

        self._check()
        drop(self.role)
        drop_publisher(self.role)
        with self._learner(None, at_most) as (learner, warnings):
            uri = place.join(checkpoints.state_uri(self.model_uri), str(learner.step))
            figures: Any = self._patient(store.read_manifest, uri).meta["figures"]
            model = learner.policy.model
            embedding: Any = model.get_input_embeddings()
            trained = sum(parameter.numel() for parameter in learner.parameters)
            return RunStart(
                learner.step,
                learner.learned,
                figures,
                tuple(warnings),
                len(embedding.weight),
                model.num_parameters(),
                trained,
                dtype_name(learner.policy.dtype),
            )

    def go_back(self, step: int) -> None:
        """Remove the checkpoints of later steps than this one, of which each model that is trained beside has one."""
        self._patient(checkpoints.forget_after, self.model_uri, step, self.fence)

    def _advance(self, step: int, figures: Mapping[str, float], work: Callable[[L], Learned]) -> Learned:
        """Version ``step + 1`` from ``step`` by ``work``, saved if it is its turn, with ``figures``; the record of the
        update that made it, also where that was before."""
        started = time.perf_counter()
        self._check()  # the resident learner may be that of the session which took the run
        with learning, self._learner(step) as (learner, _):
            if learner.step == step + 1:
                assert learner.learned is not None  # every update leaves its record
                return learner.learned
            try:
                learner.decay = decayed(self.optimizer.decay, step, self.steps)
                learned = work(learner)
                learner.learned = learned = replace(learned, seconds=time.perf_counter() - started)
                if learner.step % self.checkpoint.every == 0:
                    self._save(learner, figures)
            except BaseException:
                drop(self.role)  # it may be half-way between two versions
                raise
            return learned

    def publish(self, step: int) -> Published:
        """Publish version ``step``, of the last update or the one before. The next update may run meanwhile."""
        self._check()
        with learning:
            with self._learner(step) as (learner, _):
                weights = self._weights_at(step, learner)
            publisher = resident(publisher_of(self.role), self._published_by(), self._publisher)
        leave_thread()
        return publisher.publish(step, weights)

    def mend(self, step: int, damaged: Sequence[str]) -> None:
        """Publish version ``step``, the last that was published, once more and whole: generators found these folders
        damaged, or missed some."""
        self._check()
        with learning:
            publisher = resident(publisher_of(self.role), self._published_by(), self._publisher)
            weights = None
            if not publisher.has_published:
                with self._learner(None) as (learner, _):
                    weights = self._weights_at(step, learner)
        leave_thread()
        if weights is not None:  # this process is new
            publisher.publish(step, weights)
        publisher.mend(damaged)

    def keep(self, step: int) -> None:
        """Have a checkpoint of version ``step``, the last."""
        self._check()
        with self._learner(step) as (learner, _):
            assert learner.step == step
            if step % self.checkpoint.every:
                with learning:
                    self._save(learner, {})

    @abstractmethod
    def _fresh(self) -> L:
        """A learner of version 0."""

    @abstractmethod
    def _saved(self, checkpoint: Path, warn: Callable[[str], None]) -> L:
        """A learner of the model in a checkpoint, which is to be restored."""

    @property
    def _public(self) -> "PublicModel | None":
        """The model that is version 0 and that every machine has, so that it is not published."""
        return None

    def _check(self) -> None:
        """Raise LockLostError if another session has the run by now."""
        self._patient(self.fence.check)

    @property
    def _patient(self) -> RetryPolicy:
        return RetryPolicy(self.sync.patience)

    @contextmanager
    def _learner(self, step: int | None, at_most: int | None = None) -> Iterator[tuple[L, list[str]]]:
        """The resident learner at version ``step`` or the one after it, from the newest checkpoint if it must be loaded
        (whatever that holds if ``step`` is None), with the warnings that loading gave. A run without a checkpoint
        begins with version 0, which becomes its first. Raises StepsLostError, CheckpointsLostError and BaseLost."""
        from rl.model.memory import reserve

        warnings: list[str] = []

        def newest() -> Folder | None:
            warnings.clear()  # those of an attempt that met a storage that went away
            return checkpoints.newest(self.model_uri, warn=warnings.append, at_most=at_most)

        def load() -> L:
            saved = self._patient(newest)
            if saved is None:
                if at_most:
                    raise none_as_old(self.model_uri, at_most, warnings)
                self._patient(refuse_to_begin_anew, self.run_uri, warnings, self.folder)
                learner = self._fresh()
                reserve(learner.standing, learner.policy.device)
                self._save(learner, {})
                return learner
            drop("checked")
            with saved:
                learner = self._saved(saved.path, warnings.append)
                learner.restore(saved.path)
            reserve(learner.standing, learner.policy.device)
            return learner

        with held(self.role, self, load, again=False) as learner:
            if step is None or learner.step in (step, step + 1):
                yield learner, warnings
                return
        del learner  # two would not fit
        drop(self.role)
        with held(self.role, self, load, again=False) as learner:
            if learner.step not in (step, step + 1):
                raise self._steps_lost(learner.step, step)
            yield learner, warnings

    def _steps_lost(self, newest: int, needed: int) -> StepsLostError:
        return StepsLostError(
            f"{masked(self.run_uri)}: version {needed} is lost with the trainer that had made it; the newest "
            f"checkpoint is of version {newest}"
        )

    def _save(self, learner: L, figures: Mapping[str, float]) -> None:
        with store.scratch(self.model_uri) as folder:
            learner.save(folder)
            meta: dict[str, JsonValue] = {"figures": dict(figures)}
            kept, patience = self.checkpoint.keep_last + self.beside, self.sync.patience
            checkpoints.save(self.model_uri, learner.step, folder, meta, kept, patience=patience, fence=self.fence)

    def _published_by(self) -> tuple[Any, ...]:
        return self.model_uri, self.sync, self.window, self.fence

    def _publisher(self) -> "Publisher":
        from infra.weights.publisher import Publisher
        from rl.model.policy import save_files

        files = Path(tempfile.mkdtemp(dir=disk.own_folder()))  # not a hold on the policy, which may be replaced
        with self._learner(None) as (learner, _):
            save_files(learner.policy, files)
        publisher = Publisher(
            self.model_uri,
            self.sync,
            window=self.window,
            files=files,
            sampling=self.sampling.model_dump(mode="json"),
            public=self._public,
            fence=self.fence,
            kept=self._kept,
        )
        weakref.finalize(publisher, shutil.rmtree, files, ignore_errors=True)
        return publisher

    def _kept(self, _: int) -> set[int]:
        """Versions that must stay published beside those that readers may be behind, when a version is the newest."""
        return set()

    def _weights_at(self, step: int, learner: L) -> "Weights":
        """The weights of version ``step``, the learner's or a kept one, as they are published."""
        from rl.model.policy import read_weights
        from tasks.calls.published import as_published, published_type

        dtype = published_type(self.sync.dtype, learner.policy)
        if learner.step == step:
            return as_published(learner.policy.weights(), dtype, learner.policy)
        try:
            with self._patient(checkpoints.load, self.model_uri, step) as folder:  # the next update was faster
                return as_published(read_weights(folder.path), dtype, learner.policy)
        except NotThere:
            raise self._steps_lost(learner.step, step) from None


def publisher_of(role: str) -> str:
    """The name of a model's resident publisher."""
    return f"{role}'s publisher"


def drop_publisher(role: str) -> None:
    """Drop the publisher of a session that has ended; others may have published since."""
    from infra.weights.publisher import Publisher

    earlier = resident_now(publisher_of(role))
    if isinstance(earlier, Publisher):
        earlier.close()
        drop(publisher_of(role))
