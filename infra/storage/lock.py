"""One writer of a run at a time, wherever the run lies: a lock with a heartbeat, and a fencing epoch for every write.

Under `<run>/lock/` lies a claim for each epoch. The highest epoch holds the run, and its owner writes its claim anew
every few seconds. A process that sees a claim unchanged for `DEAD_SECONDS` takes the next epoch; clocks are never
compared. An owner that slept meanwhile finds the newer epoch before its next write, and writes no more.

In a folder an epoch is one file, which the file system lets one process make; a random mark in it tells an owner that
the folder was removed and the run begun anew, with the same epochs. Not every store elsewhere can create a file
exclusively (some refuse `If-None-Match`): there each process puts a claim under a name of its own and waits until all
can be seen; the first name holds the epoch, unless another had been confirmed before.
"""

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from dataclasses import asdict, replace
from pathlib import Path
from typing import Literal

from infra import disk
from infra.security.secrets import masked
from infra.storage import place
from infra.storage.claim import Claim, Seen, claims, newest_claim, of_newest_epoch
from infra.storage.fence import Fence, LockLostError

BEAT_SECONDS = 3.0
DEAD_SECONDS = 30.0  # an owner without a heartbeat for so long, while another process watched, counts as dead
SURE_SECONDS = DEAD_SECONDS / 3  # for so long after a heartbeat of its own an owner need not look
SETTLE_SECONDS = 1.0  # after which every reader of a store elsewhere sees a claim
POLL_SECONDS = 0.5


class RunInUseError(ValueError):
    """Another process trains the run; one line that says who, and since when."""


class RunLock:
    """The lock of a run that this process holds until `release`. Safe to use from several threads."""

    def __init__(self, fence: Fence, claim: Claim) -> None:
        self.fence = fence
        self._claim = claim
        self._given = False  # whether writers have the fence
        self._trains = False  # whether the claim names the flow run of this process
        self._writing = threading.RLock()  # of claims: no heartbeat of an epoch follows the next one's
        self._is_folder = place.local_path(fence.run) is not None
        self._lost = threading.Event()
        self._sure = _now()
        self._when_lost: Callable[[], None] = lambda: None
        self._while_away: Callable[[], AbstractContextManager[None]] = nullcontext
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lock", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Raise LockLostError where another process has taken the run, or it was removed. A folder is read each time, a
        store elsewhere only when the last heartbeat is old."""
        if self._is_folder or self._lost.is_set() or _now() - self._sure > SURE_SECONDS:
            with self._writing:
                self.fence.check()

    def new_fence(self) -> Fence:
        """A fence that no writer has had before: writers with an earlier one are refused from now on. Raises
        LockLostError."""
        with self._writing:
            if self._given:
                self.fence.check()
                fence, claim = _next_claim(self.fence.run, self.fence.epoch + 1, self._claim.flow_run)
                if not _take(fence, claim):
                    raise LockLostError(f"{self.fence.run} was taken over by another process")
                self.fence, self._claim = fence, replace(claim, state="held")
            self._given = True
            return self.fence

    @property
    def killed(self) -> str:
        """The flow run of an owner before that was killed, until `train_in`; empty where there is none."""
        return "" if self._trains else self._claim.flow_run

    def train_in(self, flow_run: str) -> None:
        """Note Prefect's flow run that trains the run from now on. Raises LockLostError."""
        with self._writing:
            self.fence.check()
            self._trains = True
            self._write(replace(self._claim, flow_run=flow_run))

    def when_lost(self, act: Callable[[], None]) -> None:
        """Have `act` called, in a thread of its own, when another process has taken the run."""
        self._when_lost = act
        if self._lost.is_set():
            act()

    def while_away(self, context: Callable[[], AbstractContextManager[None]]) -> None:
        """Have a `context` entered from the beginning of a heartbeat until the storage has taken one."""
        self._while_away = context

    def release(self) -> bool:
        """Give the run up, for others to take at once; whether this process held it until now."""
        self._over.set()
        self._thread.join(DEAD_SECONDS)
        if self._thread.is_alive():  # in a heartbeat that the storage has not answered
            raise TimeoutError(f"no answer for {DEAD_SECONDS:.0f} s")
        with suppress(LockLostError):
            self.fence.check()
            flow_run = "" if self._trains else self._claim.flow_run  # which says itself how it ends
            self._write(replace(self._claim, state="released", flow_run=flow_run))
            return True
        return False

    def _beat(self) -> None:
        with ExitStack() as away:
            taken = True
            while not self._over.wait(BEAT_SECONDS):
                began = _now()
                if taken:
                    away.enter_context(self._while_away())
                try:
                    with self._writing:
                        self.fence.check()
                        self._write(replace(self._claim, beat=self._claim.beat + 1))
                    self._sure, taken = began, True
                    away.close()
                except LockLostError:
                    self._lost.set()
                    self._when_lost()
                    return
                except Exception:  # noqa: BLE001 - the storage is away: `check` asks it before anything is written
                    taken = False

    def _write(self, claim: Claim) -> None:
        self._claim = claim
        place.write_text(self.fence.claim, json.dumps(asdict(claim)))


_open: ContextVar[RunLock | None] = ContextVar("run lock", default=None)


@contextmanager
def held(uri: str, say: Callable[[str], None]) -> Iterator[RunLock]:
    """The lock of the run at `uri`: the one that is held around this already, or a new one, released at the end. `say`
    gets a line when an owner without a heartbeat is waited for, and when the lock could not be released.

    Raises RunInUseError, at the latest after `DEAD_SECONDS`, and what the storage raises.
    """
    present = _open.get()
    if present is not None and present.fence.run == uri:
        yield present
        return
    lock = acquire(uri, say)
    token = _open.set(lock)
    try:
        yield lock
    finally:
        _open.reset(token)
        try:
            if lock.release():
                _leave_nothing(lock.fence)
        except Exception as error:  # noqa: BLE001 - the storage is away: its library's own errors, too
            why = " ".join(masked(str(error)).split()) or type(error).__name__
            say(f"{masked(uri)} could not be released ({why}); who wants it next waits {DEAD_SECONDS:.0f} s")


def _leave_nothing(fence: Fence) -> None:
    """Remove the lock where no run was begun; not where an earlier owner may be asleep, which must not find an epoch of
    its own again."""
    others = place.names(fence.run) or [uri for uri in place.folders(fence.run) if not uri.endswith("/lock")]
    if others or fence.epoch > 1:
        return
    place.remove_file(fence.claim)
    if (path := place.local_path(fence.run)) is not None:
        with suppress(OSError):  # another process takes the run just now
            (path / "lock").rmdir()
            path.rmdir()


def acquire(uri: str, say: Callable[[str], None]) -> RunLock:
    """Take the lock, from a dead owner too. Raises as `held` does."""
    while True:
        newest = newest_claim(uri)
        killed = "" if newest is None else _outlive(newest, say)
        fence, claim = _next_claim(uri, 1 if newest is None else newest.epoch + 1, killed)
        if _take(fence, claim):
            return RunLock(fence, replace(claim, state="held"))


def _next_claim(uri: str, epoch: int, flow_run: str) -> tuple[Fence, Claim]:
    claim = replace(Claim.of_this_process(), flow_run=flow_run)
    return Fence(uri, epoch, claim.mark if place.local_path(uri) is None else "", claim.mark), claim


def _take(fence: Fence, claim: Claim) -> bool:
    """Whether the claim could be made: no other process was first. Claims of earlier epochs are removed then."""
    path = place.local_path(fence.claim)
    taken = _settle(fence, claim) if path is None else _make(path, replace(claim, state="held"))
    if taken:
        for name in claims(fence.run):
            if int(name.partition("-")[0].removesuffix(".json")) < fence.epoch:
                place.remove_file(place.join(fence.run, "lock", name))
    return taken


def _make(path: Path, claim: Claim) -> bool:
    """In a folder: make the claim; whether it is the first of its epoch."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("x") as file:
            file.write(json.dumps(asdict(claim)))
    except (FileExistsError, FileNotFoundError):  # the latter: an owner that began no run has just left
        return False
    disk.sweep_files(path.parent)  # half-written claims of dead owners
    return True


def _settle(fence: Fence, claim: Claim) -> bool:
    """In a store elsewhere: make the claim; whether it holds its epoch."""
    states: tuple[Literal["claimed", "held"], ...] = ("claimed", "held")
    for state in states:
        place.write_text(fence.claim, json.dumps(asdict(replace(claim, state=state))))
        time.sleep(SETTLE_SECONDS)
        rivals = [seen for seen in of_newest_epoch(fence.run) if seen.epoch >= fence.epoch and seen.uri != fence.claim]
        newer = any(rival.epoch > fence.epoch for rival in rivals)
        first = any(rival.uri < fence.claim and (rival.is_held or state == "claimed") for rival in rivals)
        confirmed = state == "claimed" and any(rival.is_held for rival in rivals)
        if newer or first or confirmed:
            place.remove_file(fence.claim)
            return False
    return True


def _outlive(seen: Seen, say: Callable[[str], None]) -> str:
    """Wait until the owner has released the run or is dead; its flow run. Raises RunInUseError at its heartbeat."""
    run = seen.uri.rpartition("/lock/")[0]
    began = time.monotonic()
    said = False
    now: Seen | None = seen
    while now == seen:
        claim = seen.claim
        waited = time.monotonic() - began
        if waited > DEAD_SECONDS or (claim is not None and (claim.state == "released" or claim.is_gone)):
            return "" if claim is None else claim.flow_run
        if waited > 2 * BEAT_SECONDS and not said:
            said = True
            say(
                f"{claim or 'somebody'} holds {run} and gives no sign; it is taken over in "
                f"{DEAD_SECONDS - waited:.0f} s"
            )
        time.sleep(POLL_SECONDS)
        now = newest_claim(run)
        if now is not None and now.claim is None:
            now = seen  # it is being written
    if now is None or (now.claim is not None and now.claim.state == "released"):
        return "" if now is None or now.claim is None else now.claim.flow_run
    raise RunInUseError(
        f"{run} is in use by {now.claim or 'another process'}; wait for its end, or stop it there: it is saved"
    )


def _now() -> float:
    """Seconds that go on while this machine sleeps."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))
