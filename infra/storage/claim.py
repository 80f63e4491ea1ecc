"""The claim of a run's lock, as it lies in storage: who holds the run, and since when. See `infra.storage.lock`."""

import getpass
import os
import secrets
import socket
import time
import uuid
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Literal

import psutil
from pydantic import Field, TypeAdapter

_Moment = Annotated[float, Field(ge=0, lt=2**37)]  # seconds since 1970, that a calendar has


@dataclass(frozen=True)
class Claim:
    """The process that holds a run's lock, or wants to."""

    user: str
    host: str
    machine: str  # one start of one machine, see `_machine`: where it is the same, process ids mean the same
    pid: Annotated[int, Field(ge=1, le=2**31 - 1)]
    started: _Moment  # of the process, see `_started`
    since: _Moment  # of the claim
    state: Literal["claimed", "held", "released"] = "claimed"
    beat: Annotated[int, Field(ge=0)] = 0
    mark: str = ""  # random: no other claim, ever, is this one

    @classmethod
    def of_this_process(cls) -> "Claim":
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # a container may have no name for it
            user = str(os.getuid())
        pid = os.getpid()
        return cls(user, socket.gethostname(), _machine(), pid, _started(pid), time.time(), mark=secrets.token_hex(8))

    @property
    def is_gone(self) -> bool:
        """Whether its process has ended, as far as that can be seen from here."""
        if self.machine != _machine():
            return False
        try:
            return abs(_started(self.pid) - self.started) > 1
        except psutil.NoSuchProcess:
            return True
        except psutil.AccessDenied:
            return False

    def __str__(self) -> str:
        since = datetime.fromtimestamp(self.since).astimezone()
        return f"{self.user}@{self.host} (process {self.pid}) since {since:%Y-%m-%d %H:%M:%S %Z}"


_CLAIM = TypeAdapter(Claim)


def read_claim(content: bytes) -> Claim | None:
    """The claim in a file; None where it is damaged or half written."""
    try:
        return _CLAIM.validate_json(content)
    except ValueError:
        return None


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
