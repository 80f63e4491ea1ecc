"""Faults of processes and folders that pass."""

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from signal import SIGCONT, SIGSTOP


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """SIGSTOP, and SIGCONT at the end."""
    os.kill(pid, SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):
            os.kill(pid, SIGCONT)


@contextmanager
def away(folder: Path) -> Iterator[None]:
    """The folder is not there meanwhile, as a share that is not mounted."""
    elsewhere = folder.with_name(f"{folder.name}-away")
    folder.rename(elsewhere)
    try:
        yield
    finally:
        elsewhere.rename(folder)
