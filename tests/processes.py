"""Terminals of processes; and processes that end with the test that started them, and waiting for what they do."""

import fcntl
import os
import pty
import termios
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from flows.benches.processes import MARK, kill_marked, marked, of_each, started, until

__all__ = ["MARK", "Terminal", "kill_marked", "marked", "of_each", "started", "terminal", "until"]


@dataclass(frozen=True)
class Terminal:
    """A terminal of a process that is started with its `streams`."""

    screen: int
    streams: dict[str, Any]

    def read(self) -> str:
        """What was written since; somebody has to read, for a full terminal lets nobody write."""
        seen = b""
        with suppress(BlockingIOError):
            while more := os.read(self.screen, 4096):
                seen += more
        return seen.decode(errors="replace")

    def close(self) -> None:
        """Close the window: the system tells its process, and whoever writes to it fails."""
        os.close(self.screen)


@contextmanager
def terminal() -> Iterator[Terminal]:
    """A terminal, whose window the test closes."""
    screen, its = pty.openpty()
    os.set_blocking(screen, False)
    take = partial(fcntl.ioctl, its, termios.TIOCSCTTY, 0)  # in the child: its signals are for that session
    try:
        yield Terminal(screen, {**dict.fromkeys(("stdin", "stdout", "stderr"), its), "preexec_fn": take})
    finally:
        os.close(its)
