"""The locks that a training run holds while it goes on: the run's own, and the training lock of the cluster."""

from contextlib import AbstractContextManager, ExitStack
from types import TracebackType
from typing import Protocol, Self

from prefect.runtime import flow_run

from flows.run.workplace import Workplace
from infra.cluster.training_lock import TrainingLockLostError
from infra.dispatch.calls import DispatchStoppedError, TakeoverError
from infra.security.secrets import masked
from infra.storage.fence import Fence, LockLostError
from infra.storage.lock import held
from infra.storage.retry_policy import RetryPolicy
from tasks.calls.trained import StepsLostError

TrainerLost = (StepsLostError, TakeoverError)  # the run goes on in place, and keeps the training lock
Lost = (LockLostError, TrainingLockLostError)  # another process has the run, or another run the cluster


class Held(Protocol):
    """A run, as its lock sees it."""

    @property
    def uri(self) -> str: ...

    @property
    def name(self) -> str: ...

    @property
    def resumed(self) -> bool: ...

    @property
    def patience(self) -> float:
        """Seconds that its storage may be away."""

    @property
    def begun(self) -> bool:
        """Whether it exists."""


class Entered:
    """A context manager whose `__enter__` has left in `_stack` what is to be ended."""

    _stack: ExitStack

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)


class Hold(Entered):
    """A context manager; entering it waits for both locks. Raises RunInUseError, ValueError for a new run that another
    process has begun meanwhile, and DispatchStoppedError when the run's calls are stopped while it waits."""

    def __init__(self, run: Held, workplace: Workplace) -> None:
        self.ending = False
        self.fence: Fence  # of whoever writes, from entering on
        self._run, self._workplace = run, workplace

    def __enter__(self) -> Self:
        client, say = self._workplace.dispatch.client, self._workplace.display.say
        with ExitStack() as stack:
            self._lock = stack.enter_context(held(self._run.uri, say))
            if not self._run.resumed and self._run.begun:
                raise ValueError(f"run {self._run.name!r} exists by now; go on with it by --resume, or name another")
            self._training_lock = stack.enter_context(
                self._workplace.training_locks.held(
                    client, self._run.name, say, TrainerLost, check=lambda: self._go_on("the training lock")
                )
            )
            self._lock.when_lost(self._workplace.dispatch.stop)
            self._lock.while_away(self._waiting)  # whoever else waits for it: the background, a worker
            # A trainer of an earlier try may be asleep, with the fence of that one.
            self.fence = self._lock.new_fence()
            if (killed := self._lock.killed) and killed != str(flow_run.id):  # Prefect may have started it again
                self._workplace.prefect.crashed(killed)
            self._lock.train_in(str(flow_run.id or ""))
            self._stack = stack.pop_all()
        return self

    def end(self) -> None:
        """Nothing is waited for any more."""
        self.ending = True

    def check(self) -> None:
        """Raise LockLostError or TrainingLockLostError. A storage that is away is waited for, unless the run is
        `ending`: what would be written there fails then by itself."""
        patience = 0 if self.ending else self._run.patience
        try:
            with self._waiting():
                RetryPolicy(patience, check=lambda: self._go_on("the storage"))(self._lock.check)
        except Exception as error:
            if isinstance(error, LockLostError) or not self.ending:
                raise
        self._training_lock.check()

    def _go_on(self, what: str) -> None:
        """Raise DispatchStoppedError if what the run waits for is not wanted any more."""
        if self._workplace.dispatch.stopped and not self.ending:
            raise DispatchStoppedError(f"waiting for {what} was given up")  # Ctrl-C, or Cancel

    def _waiting(self) -> AbstractContextManager[None]:
        return self._workplace.dispatch.waiting_for(f"the storage of {masked(self._run.uri)}")
