"""Processes that end with what has started them, and waiting for what they do."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil

T = TypeVar("T")
SPAWNED, FORK_SERVER = "spawn_main", "multiprocessing.forkserver"  # in command lines
MARK = "RLVF_TEST_MARK"  # in the environment of a process and of all that it starts: a name of its own


@contextmanager
def started(*command: str | Path, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A process in a group of its own, which is killed if it does not end. `options` are those of `subprocess.Popen`;
    nothing is there to be read unless they say so."""
    quiet = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
    process = subprocess.Popen(command, text=True, start_new_session=True, **{**quiet, **options})
    try:
        yield process
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def marked(mark: str) -> list[psutil.Process]:
    """The living processes that have this mark."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.NoSuchProcess, psutil.AccessDenied):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get(MARK) == mark:
                found.append(process)
    return found


def of_each(processes: Iterable[psutil.Process], ask: Callable[[psutil.Process], T]) -> list[T]:
    """What is asked of these, less whoever has ended by now."""
    found = []
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            found.append(ask(process))
    return found


def kill_marked(mark: str) -> None:
    of_each(marked(mark), psutil.Process.kill)


def until(
    true: Callable[[], Any], seconds: float = 120.0, *, every: float = 0.01, about: Callable[[], str] = str
) -> Any:
    """Poll until `true()` is, at most `seconds`, and return it; `about` says more when that was too long. Raises
    TimeoutError."""
    deadline = time.monotonic() + seconds
    while not (found := true()):
        if time.monotonic() >= deadline:
            raise TimeoutError(f"waited too long {about()}")
        time.sleep(every)
    return found


def workers_of(process: psutil.Process) -> list[psutil.Process]:
    """The workers that it has started, spawned or by its fork server, whose command line forked ones have."""
    found = []
    for child in process.children():
        line = " ".join(child.cmdline())
        if FORK_SERVER in line:
            found += child.children()
        elif SPAWNED in line:
            found.append(child)
    return found
