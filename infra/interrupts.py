"""Ctrl-C, SIGTERM and the end of a terminal (SIGHUP) where they do no harm: an exception that breaks in between any two
instructions can leave a lock taken, in a library that never expected it."""

import errno
import os
import signal
import termios
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from types import FrameType
from typing import Any

from infra.home import rlvf_home
from infra.logs import log_at

NUMBERS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def leave_terminal() -> None:
    """Redirects stdout and stderr to `<home>/logs/hangup.log` where their terminal is gone: writing to it fails, and
    what a run ends with (how to go on) is wanted later."""
    gone = [output for output in (1, 2) if _is_closed_terminal(output)]
    if gone:
        to = _hangup_log()
        for output in gone:
            os.dup2(to, output)
        os.close(to)


def _hangup_log() -> int:
    with suppress(OSError, ValueError):  # no room, another user's home: nobody is there to be told
        if (home := rlvf_home()).is_dir():
            return os.open(log_at(home / "logs" / "hangup.log"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    return os.open(os.devnull, os.O_WRONLY)


def _is_closed_terminal(output: int) -> bool:
    try:
        termios.tcgetattr(output)
    except termios.error as error:
        return bool(error.args[0] == errno.EIO)  # else it is a file or a pipe
    return False


@contextmanager
def put_off() -> Iterator[None]:
    """Defers signals to the end of the context; without effect in other threads than the main one, which gets them.

    An import is wrapped in it: what that runs takes a KeyboardInterrupt for an error of its own, or swallows it."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []

    def note(number: int, _frame: FrameType | None) -> None:
        came.append(number)

    # None: a handler that is not Python's, which cannot be put back
    before = {number: handler for number in NUMBERS if (handler := signal.getsignal(number)) is not None}
    for number in before:
        signal.signal(number, note)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for late in came:
            signal.raise_signal(late)


@contextmanager
def answered_by(stop: Callable[[], None]) -> Iterator[Sequence[int]]:
    """Calls `stop`, in a thread of its own, at the first signal, so that the work ends by itself; the signal takes
    effect at the end of the context. A second one takes effect at once, but for SIGHUP, which a closed terminal's shell
    and the system both send. Yields the signals that came so far. SIGINT and SIGHUP stay ignored where they are, as in
    a script's background job and under nohup.

    `stop` is called even where the signal came at the moment before this thread began to wait for something: Python
    sees it when that is over, and the wakeup descriptor at once.
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    woken, wake = os.pipe()
    os.set_blocking(wake, False)
    before: dict[int, Any] = {n: handler for n in NUMBERS if (handler := signal.getsignal(n)) is not None}
    for ignored in (signal.SIGINT, signal.SIGHUP):
        if before.get(ignored) == signal.SIG_IGN:
            del before[ignored]

    def wait() -> None:
        while numbers := os.read(woken, 512):
            if not before.keys().isdisjoint(numbers):  # others that Python handles are told there too
                stop()
                return

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        handler = before[number]
        if number == signal.SIGHUP:
            leave_terminal()
            if len(came) > 1:
                return
        if len(came) == 1:
            os.write(wake, bytes([number]))  # again, for a library may have set another wakeup descriptor
        elif callable(handler):
            handler(number, frame)

    waiting = threading.Thread(target=wait, name="stop on signal", daemon=True)
    waiting.start()
    for number in before:
        signal.signal(number, note)
    other = signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        with suppress(OSError):  # whoever set it may have closed it meanwhile
            signal.set_wakeup_fd(other)
        os.close(wake)
        waiting.join()
        os.close(woken)
        if came:
            signal.raise_signal(came[0])
