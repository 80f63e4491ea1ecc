"""Processes of a cluster that are started, or die, for a test."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.processes import started


def die_until(marks: Path, times: int) -> Callable[[int], int]:
    """A call that kills its worker the first `times` times."""

    def call(value: int) -> int:
        died = len(list(marks.iterdir()))
        if died < times:
            (marks / str(died)).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return value

    return call


@contextmanager
def dask(*args: str) -> Iterator[subprocess.Popen[str]]:
    """A process of Dask's command line."""
    with started(sys.executable, "-m", "distributed.cli.dask_" + args[0], *args[1:]) as process:
        yield process
