"""The versions of a model of a run on their way to its readers: published beside the next update, one at a time."""

import threading
from collections import Counter
from typing import Any

from prefect.futures import PrefectFuture

from flows.run.workplace import Workplace
from infra.errors import worker_of
from infra.runs.tracking import Tracker
from infra.storage import place
from infra.storage.manifest import NotThere, StoreError
from infra.storage.retry_policy import RetryPolicy
from infra.weights.chain import is_whole, stored_version
from infra.weights.version import PolicyVersion, Published
from tasks.calls.trained import Trained
from tasks.calls.trainer import Trainer
from tasks.publish import publish

MENDS = 8  # of one version: several batches may find it damaged at once


class Publishing:
    """Safe to use from several threads, but for `begin`."""

    def __init__(self, workplace: Workplace, trainer: Trained[Any], tracker: Tracker, step: int) -> None:
        """Publishes version ``step``, at which the trainer is, before it returns."""
        self._workplace = workplace
        self._trainer = trainer
        self._tracker = tracker
        self._under_way: PrefectFuture[Published] | None = None
        self._mending = threading.Lock()
        self._mended: Counter[int] = Counter()  # by version
        self.policy: PolicyVersion  # the newest that is published
        self._known: dict[int, PolicyVersion] = {}
        self._arrived(publish(workplace.dispatch, trainer, step))

    def begin(self, step: int) -> None:
        """Begin to publish version ``step``, the trainer's last, once the one before is there. Whatever the trainer is
        asked for after that runs beside it."""
        self.end()
        begun = threading.Event()
        self._under_way = publish.submit(self._workplace.dispatch, self._trainer, step, begun.set, self._arrived)
        self._under_way.add_done_callback(lambda _: begun.set())
        begun.wait()

    def end(self) -> PolicyVersion:
        """Wait for the version that was begun last, and return it. Raises what its publication raised."""
        if self._under_way is not None:
            self._under_way.result()
        return self.policy

    def newest(self, at_least: int) -> PolicyVersion:
        """The newest version that is published; waits for the one under way where that is before ``at_least``."""
        return self.policy if self.policy.step >= at_least else self.end()

    def version(self, step: int) -> PolicyVersion:
        """Version ``step``, which the trainer keeps; waits for it where it is under way. Raises NotThere."""
        self.newest(step)
        if step not in self._known:
            weights = place.join(self._trainer.model_uri, "weights")
            self._known[step] = RetryPolicy(self._trainer.sync.patience)(stored_version, weights, step)
        return self._known[step]

    def mend(self, error: StoreError) -> None:
        """Have the trainer publish the newest version again, whole, as a generator cannot read it. A version that is
        whole for this process is left: that worker is tried again, or another. Raises ``error`` where neither has
        helped MENDS times."""
        with self._mending:
            step = self.policy.step
            self._mended[step] += 1
            if isinstance(error, NotThere) and is_whole(self.policy):
                worker = worker_of(error) or "that worker"
                unseen = f"{error}; {self.policy.uri} is there for this machine: {worker} does not see the storage"
                if self._mended[step] == 1:
                    self._workplace.display.say(f"warning: {unseen}; there, see rlvf doctor")
                if self._mended[step] > MENDS:
                    error.args = (f"{unseen}: mount it there at the same path, or use another (rlvf doctor)",)
                    raise error
                return
            if self._mended[step] > MENDS:
                raise error
            if self._mended[step] == 1:
                self._workplace.display.say(f"warning: {error}; v{step} is published whole")
            self._workplace.dispatch.run(
                self._trainer.call, self._trainer.mend, step, error.damaged, background="publish"
            )

    def _arrived(self, published: Published) -> None:
        """A version is published: generators may have it."""
        self.policy = published.version
        self._known[self.policy.step] = self.policy
        for warning in published.warnings:
            self._workplace.display.say(f"warning: {warning}")
        if published.bytes and isinstance(self._trainer, Trainer):
            self._tracker.log(
                published.version.step,
                {
                    "sync/bytes": published.bytes,
                    "sync/ratio": published.full / published.bytes,
                    "sync/changed": published.changed,
                    "sync/encode_seconds": published.encode_seconds,
                    "sync/upload_seconds": published.upload_seconds,
                    "sync/seconds": published.seconds,
                    "sync/inexact": float(self._trainer.sync.dtype == "int8"),
                },
            )
