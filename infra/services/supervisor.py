"""A service that belongs to a folder, not to a process.

Every process that uses it holds a shared lock on `users.lock`; a small supervisor, this file run as a script, holds
`server.lock` and stops the service when `users.lock` is free. The kernel frees the locks of a process however it ends,
so a service outlives its last user by about a second and no user loses it because the one that started it is done.

    <folder>/server.lock   held while the service lives
    <folder>/users.lock    shared by its users; exclusive while it is being stopped
    <folder>/server.json   its address, and the process id of the supervisor, who writes it again where it is lost

Only the standard library, and nothing of ours: the supervisor starts in some 20 ms.
"""

import fcntl
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

BOOT = Path("/proc/sys/kernel/random/boot_id")
POLL_SECONDS = 0.5  # between two checks of the supervisor for users
MARK = "RLVF_SERVICE"  # names a service's folder in the environment of its processes
STOP_SECONDS = 5.0  # for a service to stop by itself
KILL_SECONDS = 1.0  # for its supervisor to kill it from then on: that may be stopped itself (SIGSTOP)


def boot_name() -> str:
    """Where a process number means something: the host's name, and what tells its boots and namespaces apart."""
    parts = [socket.gethostname()]
    with suppress(OSError):
        parts += [BOOT.read_text().strip(), str(Path("/proc/self/ns/pid").readlink())]
    return " ".join(parts)


class ServiceError(RuntimeError):
    """A service did not start, or stopped while it was needed."""


@dataclass(frozen=True)
class Found:
    """The content of `server.json`; the defaults, until the supervisor has written it."""

    pid: int | None = None  # of the supervisor
    machine: str | None = None  # `boot_name` where that runs
    stop_seconds: float = STOP_SECONDS
    url: str | None = None


@dataclass(frozen=True)
class Program:
    """The program of a service."""

    command: Sequence[str]  # holds no secret: every user of the machine can read it
    environment: Mapping[str, str]  # on top of this process's; an empty value stands for none
    folder: Path  # the working directory
    stop_seconds: float = STOP_SECONDS
    sockets: Sequence[int] = ()  # descriptors that it gets, by the same numbers


class Service:
    """The service of `folder`, whose output goes to `log`."""

    def __init__(self, folder: Path, log: Path) -> None:
        self.folder = folder
        self.log = log
        self._users: IO[str] | None = None
        self._supervisor: subprocess.Popen[bytes] | None = None

    def hold(self) -> None:
        """Use the service: a living one stays from now on; one that is just being stopped is waited for."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._users = (self.folder / "users.lock").open("a")
        fcntl.flock(self._users, fcntl.LOCK_SH)

    def lives(self) -> bool:
        """Whether the service runs, or at least its supervisor."""
        if not self.folder.is_dir():
            return False
        with (self.folder / "server.lock").open("a") as lock:
            return not _locked(lock)

    @property
    def is_child(self) -> bool:
        """Whether this process has started the service, or tried to."""
        return self._supervisor is not None

    def is_orphan(self) -> bool:
        """Whether the service lives on without its supervisor, which was killed."""
        if self._supervisor is not None:
            self._supervisor.poll()  # a dead child of ours would seem to live
        found = self.found()
        if found.pid is None or found.machine != boot_name() or not self.lives():
            return False
        try:
            os.kill(found.pid, 0)
        except ProcessLookupError:
            return True
        return False

    def found(self) -> Found:
        """What is known of the service; nothing where `server.json` is absent or damaged: `start` writes it anew."""
        # here: as a script this file has the standard library only
        from infra.storage.typed import DamagedError, read_typed

        try:
            return read_typed(self.folder / "server.json", Found, "") or Found()
        except (OSError, DamagedError):
            return Found()

    def start(self, program: Program, url: str | None = None) -> bool:
        """Start the service unless it lives, and return whether that was so; `url` is kept for `found`."""
        with (self.folder / "server.lock").open("a") as lock:
            if not _locked(lock):
                return False
            if self._supervisor is not None:
                self._supervisor.wait()  # its lock is free: it is gone
            (self.folder / "server.json").unlink(missing_ok=True)  # of a service that was killed
            told = {
                "url": url,
                "folder": str(program.folder),
                "seconds": program.stop_seconds,
                "sockets": [*program.sockets],
            }
            environment = {**os.environ, **program.environment, MARK: str(self.folder)}
            from infra.logs import log_at  # here: as a script this file has the standard library only

            with log_at(self.log).open("ab") as log:
                self._supervisor = subprocess.Popen(
                    # Isolated, without site: it needs the standard library only.
                    [sys.executable, "-I", "-S", __file__, str(lock.fileno()), json.dumps(told), *program.command],
                    cwd=self.folder,
                    env={name: value for name, value in environment.items() if value},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    pass_fds=[lock.fileno(), *program.sockets],
                    start_new_session=True,  # the Ctrl-C of the terminal is for its user, who may still need it
                )
        return True

    def release(self) -> bool:
        """Leave the service, and stop it if it has no other user; whether that stopped it."""
        if self._users is None:
            return False
        users, self._users = self._users, None
        with users:
            alone = _locked(users)  # a new user waits until the old service is gone
            if alone:
                self.end()
        if self._supervisor is not None:
            self._supervisor.wait() if alone else self._supervisor.poll()
        return alone

    def stop_unused(self) -> bool:
        """Stop a living service without users, which were killed; whether that stopped it."""
        if not self.lives():
            return False
        with (self.folder / "users.lock").open("a") as users:
            fcntl.flock(users, fcntl.LOCK_SH)  # its supervisor may be ending it already
            if not _locked(users):
                return False
            self.end()
        return True

    def end(self) -> None:
        """Have the supervisor end the service, whoever uses it, and wait for that. Raises `ServiceError` where it runs
        on another machine that shares the home: its process id is another process's here; and where nothing says which
        process it is, as `server.json` is lost and nobody writes it again."""
        asked, deadline = False, time.monotonic() + STOP_SECONDS + KILL_SECONDS
        while self.lives():
            found = self.found()
            if found.machine not in (None, boot_name()):
                raise ServiceError(f"the service of {self.folder} runs on {found.machine.split()[0]}: rlvf down there")
            supervisor = found.pid or self._own_supervisor()
            if supervisor is None and time.monotonic() > deadline:
                raise ServiceError(
                    f"the service of {self.folder} goes on: its server.json is lost, and with it which process it is; "
                    f"end the processes that have {MARK}={self.folder} in their environment"
                )
            # The supervisor leads the service's process group, of which a process lives by the lock: the id is theirs.
            if supervisor and time.monotonic() > deadline:
                with suppress(ProcessLookupError):
                    os.killpg(supervisor, signal.SIGKILL)
            elif supervisor and not asked:
                asked, deadline = True, time.monotonic() + found.stop_seconds + KILL_SECONDS
                if self._supervisor is not None:
                    self._supervisor.poll()  # a dead child of ours would seem to take the signal
                try:
                    os.kill(supervisor, signal.SIGTERM)
                except ProcessLookupError:  # it was killed and its service lives on
                    deadline = time.monotonic()
            time.sleep(0.02)
        (self.folder / "server.json").unlink(missing_ok=True)

    def _own_supervisor(self) -> int | None:
        """The process id of the living one that this process has started."""
        own = self._supervisor
        return own.pid if own is not None and own.poll() is None else None


class BackOff:
    """The pause before a dead service is started again: longer each time, until it has run for `WHILE`."""

    FIRST, LONGEST, WHILE = 0.5, 30.0, 60.0  # seconds

    def __init__(self) -> None:
        self._next = self.FIRST

    def pause(self, ran: float) -> float:
        """Seconds to wait after a service died that `ran` for so many."""
        if ran >= self.WHILE:
            self._next = self.FIRST
        pause, self._next = self._next, min(2 * self._next, self.LONGEST)
        return pause


def _locked(file: IO[str]) -> bool:
    """Try to lock `file` for us alone."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _supervise(lock: int, told: Mapping[str, Any], command: Sequence[str]) -> None:
    """Run the service until it ends, SIGTERM comes, or nobody holds `users.lock`; then kill its process group."""
    asked = False

    def ask(*_: object) -> None:
        nonlocal asked
        asked = True

    # Either signal ends the sleep below, through a byte in this pipe.
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    signal.signal(signal.SIGTERM, ask)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    seconds, sockets = told["seconds"], told["sockets"]
    known = json.dumps(asdict(Found(os.getpid(), boot_name(), seconds, told["url"])))
    _keep(known)
    # The service holds the lock too: if only the supervisor is killed, no second service starts on the same database.
    server = subprocess.Popen(command, cwd=told["folder"], stdin=subprocess.DEVNULL, pass_fds=[lock, *sockets])
    for each in sockets:
        os.close(each)  # the server's, and its starter's
    with Path("users.lock").open("a") as users:
        while server.poll() is None and not asked and not _locked(users):
            if select.select([woken], [], [], POLL_SECONDS)[0]:
                os.read(woken, 512)
            with suppress(OSError):  # a disk that is full, or the folder is gone: at the next poll
                _keep(known)
        server.terminate()
        with suppress(subprocess.TimeoutExpired):
            server.wait(seconds)
        Path("server.json").unlink(missing_ok=True)
        os.killpg(0, signal.SIGKILL)  # what it left behind, and this process, which leads the group


def _keep(known: str) -> None:
    """Write `server.json`, unless it is there as it was written."""
    found = Path("server.json")
    try:
        if found.read_bytes() == known.encode():
            return
    except FileNotFoundError:
        pass
    made = found.with_suffix(".json.new")
    made.write_text(known)
    made.replace(found)


if __name__ == "__main__":
    _supervise(int(sys.argv[1]), json.loads(sys.argv[2]), sys.argv[3:])
