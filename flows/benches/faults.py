"""Faults of processes and folders that pass."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from errno import EEXIST, ENOTEMPTY
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
    """The folder is not there meanwhile, as a share that is not mounted: what is written in its place is hidden by it
    once it is back."""
    elsewhere = folder.with_name(f"{folder.name}-away")
    folder.rename(elsewhere)
    try:
        yield
    finally:
        while True:
            try:
                elsewhere.rename(folder)
                break
            except OSError as error:
                if error.errno not in (EEXIST, ENOTEMPTY):
                    raise
                folder.rename(folder.with_name(f"{folder.name}-hidden-{time.time_ns()}"))
