"""Which process of which machine: a process id alone means another process after a while, and elsewhere."""

import json
import os
import socket
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import psutil
from pydantic import Field, TypeAdapter


@dataclass(frozen=True)
class ProcessIdentity:
    """No other process, ever, has the same one."""

    machine: str  # one start of one machine, see `_machine`: where it is the same, process ids mean the same
    pid: Annotated[int, Field(ge=1, le=2**31 - 1)]
    started: float  # see `_started`

    @classmethod
    def of_this(cls) -> "ProcessIdentity":
        """That of this process."""
        return cls(_machine(), os.getpid(), _started(os.getpid()))

    @property
    def is_gone(self) -> bool:
        """Whether the process has ended, as far as that can be seen from here."""
        if self.machine != _machine():
            return False
        try:
            return abs(_started(self.pid) - self.started) > 1
        except psutil.NoSuchProcess:
            return not _is_there(self.pid)
        except psutil.AccessDenied:
            return False

    def to_json(self) -> str:
        """For `read_identity`."""
        return json.dumps(asdict(self))


_IDENTITY = TypeAdapter(ProcessIdentity)


def read_identity(text: str) -> ProcessIdentity | None:
    """The identity that `to_json` wrote; None of another text."""
    try:
        return _IDENTITY.validate_json(text)
    except ValueError:
        return None


def _is_there(pid: int) -> bool:
    """Whether there is a process with that id, be it another user's where /proc hides those (hidepid), which
    `psutil.pid_exists` asks."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is another user's
    return True


def _started(pid: int) -> float:
    """When a process was started, in seconds since the start of its machine where the system says so, else since 1970,
    which setting the clock moves. Raises `psutil.Error`."""
    process = psutil.Process(pid)
    try:
        after_the_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2]
    except OSError:
        return process.create_time()
    return int(after_the_name.split()[19]) / os.sysconf("SC_CLK_TCK")  # starttime, see proc_pid_stat(5)


def _machine() -> str:
    """Identifies this machine, from its last start on; a container is a machine of its own."""
    boot, pids = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/pid")
    if boot.exists() and pids.exists():
        return f"{boot.read_text().strip()} {pids.readlink()}"
    return f"{uuid.getnode()} {socket.gethostname()}"
