"""The training lock of a cluster: one training run or warm-up at a time, a second one waits."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from distributed import Client, Lock

from infra.cluster.placement import ANSWER_SECONDS
from infra.process_identity import ProcessIdentity, read_identity

TRAINING = ["rlvf", "training"]  # the scheduler's metadata: the run that trains, and how many have before it
POLL_SECONDS = 1.0
SURE_SECONDS = 10.0  # a third of what Dask gives a lock whose owner gives no sign
GONE_SECONDS = 10.0  # that an owner may be without a connection, which one over Wi-Fi has lost sometimes
ASK_SECONDS = 5.0  # between two questions whether it has one, which are answered by its last thousand events


class TrainingLockLostError(RuntimeError):
    """Another run has acquired the training lock."""


class TrainingLock:
    """A run's training lock, with a fencing epoch: a run whose process slept does not train beside the next owner."""

    def __init__(self, client: Client, name: str, lock: Lock) -> None:
        self.lock = lock
        self._client, self._name = client, name
        self._epoch = _owner(client)["epoch"] + 1
        self._asked = -float("inf")
        self._announce(name)
        self.check()

    def check(self) -> None:
        """Raise TrainingLockLostError if another run has the lock. Asks the scheduler every `SURE_SECONDS` at most."""
        now = time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))  # goes on in a machine's sleep
        if now - self._asked > SURE_SECONDS and self._client.status == "running":
            try:
                owner = _owner(self._client, ANSWER_SECONDS)
            except OSError:
                self._asked = now
                return  # the scheduler is gone, or hangs, and with it whatever could be done there
            if owner["epoch"] > self._epoch:
                raise TrainingLockLostError(
                    f"{self._name} gave no sign for so long that {owner['name'] or 'another run'} got the cluster; "
                    "resume it, or start it again: what it has saved stays"
                )
            self._asked = now

    def is_known(self, seconds: float) -> bool:
        """Whether the scheduler knows it as the last one. Raises OSError without an answer in so many seconds."""
        return bool(_owner(self._client, seconds)["epoch"] == self._epoch)

    def end(self) -> None:
        """Release: clear the owner."""
        self._announce(None)

    @property
    def lease(self) -> str | None:
        """By which the scheduler knows this acquisition; None once it is released."""
        return next(iter(vars(self.lock)["_leases"]), None)

    def _announce(self, name: str | None) -> None:
        process = ProcessIdentity.of_this().to_json()
        owner = {"name": name, "epoch": self._epoch, "client": self._client.id, "process": process, "lease": self.lease}
        self._client.set_metadata(TRAINING, owner)  # type: ignore[no-untyped-call]


class _Lock(Lock):
    """One whose lease is tried to be kept, without a word where the scheduler is away: the flow says that."""

    async def _refresh_leases(self) -> None:
        with suppress(OSError, RuntimeError):  # the second where the client has given up
            await super()._refresh_leases()  # type: ignore[no-untyped-call]


class _Owner:
    """Of the lock that another run waits for."""

    def __init__(self, client: Client, name_of_lock: str) -> None:
        self._client, self._name_of_lock = client, name_of_lock
        self._asked = -float("inf")
        self._lease: str | None = None  # of an owner without a connection
        self._since = 0.0

    def release_if_gone(self) -> bool:
        """Release the lock if the owner's process has ended, as far as that can be seen from this machine, or if it has
        not had a connection to the scheduler for `GONE_SECONDS`, as one that was killed on another."""
        now = time.monotonic()
        if now - self._asked < ASK_SECONDS or self._client.status != "running":
            return False
        self._asked, owner = now, _owner(self._client)
        lease = owner["lease"] if owner["name"] is not None and self._is_away(owner["client"]) else None
        if lease != self._lease:
            self._lease, self._since = lease, now
        process = read_identity(owner["process"])
        if lease is None or (now - self._since < GONE_SECONDS and not (process and process.is_gone)):
            return False
        release(self._client, self._name_of_lock, lease)
        return True

    def _is_away(self, owner: str) -> bool:
        """Whether the last that the scheduler knows of this client is that its connection was closed."""
        of_it = (event.get("action") for _, event in self._client.get_events(owner))
        connections = [action for action in of_it if action in ("add-client", "remove-client")]
        return connections[-1:] == ["remove-client"]


def release(client: Client, name_of_lock: str, lease: str) -> None:
    """Release what another client has acquired, if it has it yet."""
    scheduler: Any = client.scheduler
    client.sync(scheduler.semaphore_release, name=name_of_lock, lease_id=lease)  # type: ignore[no-untyped-call]


def wait_for_ever() -> None:
    """The check of a wait that nothing ends but the lock."""


@contextmanager
def training_lock(
    client: Client,
    name: str,
    say: Callable[[str], None],
    check: Callable[[], None] = wait_for_ever,
    left: str | None = None,
) -> Iterator[TrainingLock]:
    """Acquire the lock, for as long as the context lasts. `check` is called once a second while another run has it;
    what it raises ends the wait. `left`: a lease of this run's, on a connection that broke before it could be released.

    A run that is killed loses the lock to whoever waits: at once on its own machine, after `GONE_SECONDS` elsewhere.
    One of which the scheduler has not heard for 30 s (Dask's ``distributed.scheduler.locks.lease-timeout``), because it
    sleeps or its machine is gone, loses it too: see `TrainingLock.check`.
    """
    name_of_lock = _name(client)
    lock = _Lock(name_of_lock, scheduler_rpc=client.scheduler, loop=client.loop)  # type: ignore[no-untyped-call]
    owner, is_said = _Owner(client, name_of_lock), False
    if left is not None:
        release(client, name_of_lock, left)
    while not lock.acquire(timeout=POLL_SECONDS):  # type: ignore[no-untyped-call]
        if owner.release_if_gone():
            continue
        if not is_said:
            say(f"waiting: {training(client) or 'another run'} trains on this cluster")
            is_said = True
        check()
    mine = TrainingLock(client, name, lock)
    try:
        yield mine
    finally:
        lock.refresh_leases = False  # whatever keeps it from being released
        with suppress(OSError):  # it has gone just now, or hangs
            if client.status == "running" and _name(client, ANSWER_SECONDS) == name_of_lock:
                if mine.is_known(ANSWER_SECONDS):  # else what the scheduler knows is the next one's
                    mine.end()
                lock.release()  # type: ignore[no-untyped-call]


class TrainingLocks:
    """The training lock of a flow, kept while its run goes on in place: another run gets it when that has ended."""

    def __init__(self) -> None:
        self._kept = ExitStack()
        self._mine: TrainingLock | None = None
        self._client: Client | None = None
        self._is_held = False  # by a `held` that goes on
        self._left: str | None = None  # a lease that could not be released

    @contextmanager
    def held(
        self,
        client: Client,
        name: str,
        say: Callable[[str], None],
        keep: tuple[type[BaseException], ...] = (),
        check: Callable[[], None] = wait_for_ever,
    ) -> Iterator[TrainingLock]:
        """As `training_lock`, but one of the errors in ``keep`` leaves the lock to the next one on the same client,
        until `close`. Where it is held already, as around the warm-up of a run, it is that one."""
        if self._mine is not None and self._is_held:
            yield self._mine
            return
        if self._mine is None or self._client is not client:
            self.close()
            mine = training_lock(client, name, say, check, self._left)
            self._mine, self._client, self._left = self._kept.enter_context(mine), client, None
        with ExitStack() as ending:
            ending.callback(self.close)
            self._is_held = True
            try:
                yield self._mine
            except keep:
                ending.pop_all()
                raise
            finally:
                self._is_held = False

    def close(self) -> None:
        """Release what `held` has kept."""
        mine, self._mine, self._client = self._mine, None, None
        self._kept.close()
        if mine is not None:
            self._left = mine.lease


def training(client: Client) -> str | None:
    """The name of the run that trains on the cluster now."""
    name = _owner(client)["name"]
    return None if name is None else str(name)


def _name(client: Client, seconds: float | None = None) -> str:
    """The lock's name, with the scheduler's id in it: an owner that has not noticed the death of a scheduler renews its
    lease at the next one, which would take the lock for held. Raises OSError without an answer in so many seconds."""
    assert client.scheduler is not None
    identity = client.sync(client.scheduler.identity, n_workers=0, callback_timeout=seconds)  # type: ignore[no-untyped-call]
    return f"rlvf training {identity['id']}"


def _owner(client: Client, seconds: float | None = None) -> dict[str, Any]:
    """Raises OSError without an answer in so many seconds."""
    asked: Any = client.scheduler
    found = client.sync(asked.get_metadata, keys=TRAINING, default=None, callback_timeout=seconds)  # type: ignore[no-untyped-call]
    return {"name": None, "epoch": 0, "client": "", "process": "", "lease": None, **(found or {})}
