"""One process that holds a function of the user's, with its supervisor above it: started, asked, ended."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rl.verifiers.isolation import leftovers, sandbox
from rl.verifiers.isolation.channel import Channel, ClosedError, LostError
from rl.verifiers.isolation.confinement import UNPRIVILEGED, is_linux
from rl.verifiers.isolation.interpreter import UnreadableError, folders, view

OURS = str(Path(__file__).parents[3])
CHILD = Path(__file__).with_name("child.py")
# of ours it needs its own room alone, which comes after all of the standard library
SUPERVISOR = f"import sys; sys.path.append({OURS!r}); from rl.verifiers.isolation.supervisor import main; main()"
LOAD_SECONDS = 60.0  # that the user's file may take with what it imports
END_SECONDS = 40.0  # that a supervisor may take to end what is below it
MAX_LOG = 4 * 2**20  # bytes, beyond which a log starts again
PASS_RIGHTS = 83  # SO_PASSRIGHTS, Linux 6.16: whether others may send open files over a socket
KEPT = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "SYSTEMROOT")
SET = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
SET |= {"PYTHONHASHSEED": "0"}  # a set is in the same order in whichever process


class LoadError(ValueError):
    """The function cannot be loaded: one line that names the place."""


@dataclass(frozen=True)
class Cell:
    """The sandbox, environment and log of a process."""

    sandbox: str  # one of those in `rl.verifiers.isolation.sandbox`, not auto
    network: bool = False
    env: Sequence[str] = ()  # variables of this process that it gets beside KEPT
    hidden: Sequence[str] = ()  # files and folders with secrets, there or not
    reads: Sequence[str] = ()  # files and folders that it sees in these, as it sees Python and its packages
    log: Path | None = None  # where what it prints goes
    section: str = "verifier"  # of the configuration, for messages

    @property
    def printed(self) -> str:
        """Where to read what its process printed, if it did."""
        there = self.log is not None and self.log.exists() and self.log.stat().st_size > 0
        return f"; log: {socket.gethostname()}:{self.log}" if there else ""

    def environment(self) -> dict[str, str]:
        """Raises LoadError for a variable that is not set here."""
        for name in self.env:
            if name not in os.environ:
                raise LoadError(
                    f"{self.section}.env: {name} is not set on {socket.gethostname()}, where completions are judged"
                )
        named = {name: os.environ[name] for name in (*KEPT, *self.env) if name in os.environ}
        paths = [path for path in (named.get("PYTHONPATH", ""), OURS) if path]
        return {**named, "PYTHONPATH": os.pathsep.join(paths), **SET}

    def command(self, program: Path, channel: int) -> list[str]:
        """The command line; the supervisor fills in the folder. Raises UnreadableError."""
        bubblewrapped = self.sandbox == sandbox.BUBBLEWRAP
        folder = "/tmp" if bubblewrapped else "{folder}"
        around = sandbox.bubblewrap("{folder}", self.hidden, self.reads, network=self.network) if bubblewrapped else []
        return [*around, sys.executable, "-P", str(program), str(channel), folder, "{processes}", "{asks}"]

    def confinement(self) -> dict[str, Any]:
        """How its process is to confine itself. Raises UnreadableError."""
        told = {"sandbox": self.sandbox, "network": self.network, "hidden": list(self.hidden)}
        if self.sandbox == sandbox.BUBBLEWRAP:
            return {**told, "kept": []}
        return {**told, "kept": [*folders(), *self.reads], "view": asdict(view(self.reads))}


class Process:
    """One process with the function loaded."""

    def __init__(self, load: dict[str, Any], cell: Cell, program: Path = CHILD, forks: int = 0) -> None:
        """``load``: its text, file, seconds, memory_mb, and what else ``program`` is told first, whose answer is
        `loaded`. It may have so many ``forks`` beside what the code that it runs starts. Raises LoadError."""
        environment = cell.environment()
        owner = folder_owner()
        given = None if owner == os.geteuid() else owner
        ours, theirs = socket.socketpair()
        if is_linux():
            with suppress(OSError):  # a kernel that does not know it
                ours.setsockopt(socket.SOL_SOCKET, PASS_RIGHTS, 0)  # files in our socket would be nobody's below
        control, supervised = socket.socketpair()
        try:
            confinement, command = cell.confinement(), cell.command(program, theirs.fileno())
        except UnreadableError as error:
            raise LoadError(str(error)) from None
        asked = {"command": command, "owner": given, "memory_mb": load["memory_mb"], "forks": forks}
        output = _opened(cell.log)
        with theirs, supervised:
            self._supervisor = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", SUPERVISOR, str(supervised.fileno()), str(theirs.fileno())],
                stdin=subprocess.PIPE,  # a command is longer than an argument may be
                stdout=output,
                stderr=output,
                env=environment,
                pass_fds=(supervised.fileno(), theirs.fileno()),
                start_new_session=True,
            )
            assert self._supervisor.stdin is not None
            with suppress(BrokenPipeError), self._supervisor.stdin as pipe:  # it has ended, as the first call says
                pipe.write(json.dumps(asked).encode())
        if output != subprocess.DEVNULL:
            os.close(output)
        self._channel, self._control, self._cell = Channel(ours, self.runs), control, cell
        try:
            self.loaded = self.call({**load, "max_log": MAX_LOG, "confinement": confinement}, LOAD_SECONDS)
        except LostError as lost:
            self.kill()
            raise LoadError(f"{load['file']} cannot be loaded: it {lost.args[1]}") from None
        except BaseException:
            self.kill()
            raise
        if self.loaded.get("error"):
            self.kill()
            raise LoadError(str(self.loaded["error"]))

    def runs(self) -> bool:
        try:
            # without collecting it: until then nobody else can get its id
            of = self._supervisor.pid
            return os.waitid(os.P_PID, of, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False  # somebody else has collected it

    def call(self, message: dict[str, Any], seconds: float, files: Sequence[int] = ()) -> dict[str, Any]:
        """The answer to a message, see `Channel.call`. Raises LostError."""
        try:
            return self._channel.call(message, seconds, files)
        except ClosedError:
            raise LostError(*self._end()) from None

    def is_silent(self) -> bool:
        """Whether nothing waits in its socket."""
        return self._channel.is_silent()

    def kill(self) -> None:
        """End it and everything that it started."""
        self._control.close()  # which the supervisor sees
        self._channel.close()
        try:
            self._supervisor.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._supervisor.pid, signal.SIGKILL)
            self._supervisor.wait()
        if self._supervisor.returncode < 0:  # killed, so that it has ended and removed nothing
            leftovers.sweep(os.geteuid(), self._supervisor.pid)

    def _end(self) -> tuple[str, str]:
        """The reason and a line for a process that has ended, by its supervisor's report."""
        try:
            self._control.settimeout(1)  # its socket closes a moment before it ends
            said = json.loads(self._control.recv(4096) or b"{}")
        except TimeoutError:
            return "verifier_error", "closed its connection"
        except (OSError, ValueError):
            said = {}
        number = said.get("signal", 0)
        if self._cell.sandbox == sandbox.BUBBLEWRAP and said.get("exit", 0) > 128:  # how it passes a signal on
            number = said["exit"] - 128
        if number == signal.SIGXCPU:
            return "timeout", "used more processor time than it may"
        if number in iter(signal.Signals):
            return "verifier_error", f"ended its process by {signal.Signals(number).name}"
        if "exit" in said:
            return "verifier_error", f"ended its process with exit code {said['exit']}"
        return "verifier_error", said.get("stopped", "ended its supervisor")


def folder_owner() -> int:
    """The user that a process runs as, who owns its folder."""
    return UNPRIVILEGED if is_linux() and os.geteuid() == 0 else os.geteuid()


def _opened(log: Path | None) -> int:
    if log is None:
        return subprocess.DEVNULL
    log.parent.mkdir(parents=True, exist_ok=True)
    return os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
