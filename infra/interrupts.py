"""Ctrl-C and SIGTERM where they do no harm: an exception that breaks in between any two instructions can leave a lock
taken, in a library that never expected it."""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

NUMBERS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def put_off() -> Iterator[None]:
    """Signals that come meanwhile take effect at the end. Other threads than the main one never see them.

    An import is such a place: what it runs takes a KeyboardInterrupt for an error of its own, or swallows it."""
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
    """The first signal that comes has `stop` called, in a thread of its own, so that the work ends by itself; it takes
    effect at the end of the context. A second one takes effect at once. Yields the signals that came so far. SIGINT
    stays ignored where it is, as in a script's background job.
    """
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    woken, wake = os.pipe()
    before: dict[int, Any] = {n: handler for n in NUMBERS if (handler := signal.getsignal(n)) is not None}
    if before.get(signal.SIGINT) == signal.SIG_IGN:
        del before[signal.SIGINT]

    def wait() -> None:
        if os.read(woken, 1):
            stop()

    def note(number: int, frame: FrameType | None) -> None:
        came.append(number)
        handler = before[number]
        if len(came) == 1:
            os.write(wake, b".")  # `stop` may need a lock that the interrupted thread holds
        elif callable(handler):
            handler(number, frame)

    waiting = threading.Thread(target=wait, name="stop on signal", daemon=True)
    waiting.start()
    for number in before:
        signal.signal(number, note)
    try:
        yield came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        os.close(wake)
        waiting.join()
        os.close(woken)
        if came:
            signal.raise_signal(came[0])
