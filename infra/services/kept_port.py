"""The port of a server that `rlvf up` keeps, kept while the server is dead.

A listening socket lasts as long as any process has it. `rlvf up` makes it and hands it down to each server that it
starts, so that between two of them no other program listens there, to which Prefect's own clients would send the
home's password: they connect, and wait for the next server. No other process of the home starts a server meanwhile.
"""

import fcntl
import socket
from pathlib import Path
from typing import IO

from infra import disk
from infra.hosts import listening_socket


class KeptPort:
    """The port of the service of `folder`, from `keep` to `free` or the end of this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._listening: socket.socket | None = None
        self._lock: IO[str] | None = None

    @property
    def is_held(self) -> bool:
        """Whether it listens, for the server that is there and for the next one."""
        return self._listening is not None

    def keep(self, host: str, port: int) -> int | None:
        """The descriptor of the listening socket, to be handed down; None where another program has the port."""
        if self._listening is not None and self._listening.getsockname()[1] != port:
            self.free()
        if self._listening is None:
            try:
                self._listening = listening_socket(host, port)
            except OSError:  # the server says so, and is given another port if it has not worked yet
                return None
            self._folder.mkdir(parents=True, exist_ok=True)
            self._lock = _lock_of(self._folder).open("a")
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        return self._listening.fileno()

    def free(self) -> None:
        """Close the socket here: the port is free once its server has ended."""
        if self._listening is not None and self._lock is not None:
            self._listening.close()
            self._lock.close()
        self._listening = self._lock = None


def is_kept(folder: Path) -> bool:
    """Whether an `rlvf up` keeps the port of that service, and will start it again when it is dead."""
    return disk.is_locked(_lock_of(folder), fcntl.LOCK_SH)


def _lock_of(folder: Path) -> Path:
    return folder / "port.lock"
