"""Bookkeeping off the critical path: one thread that writes what people look at later, while the run goes on."""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import copy_context
from queue import Full, Queue
from types import TracebackType
from typing import Self

WAITING = 8  # jobs, above which `submit` waits, so that a slow storage cannot fill the memory
END_SECONDS = 30.0  # for the jobs that are left at the end


class Background:
    """A context manager; leaving it waits for the jobs that are left, but not for ever.

    What a job raises never reaches the run: `say` is told, once per name until that job succeeds again.
    """

    def __init__(self, say: Callable[[str], None], lacking: str, end_seconds: float = END_SECONDS) -> None:
        """``lacking``: for people, where jobs are left at the end: what lacks something then, and what does not."""
        self._say = say
        self._lacking = lacking
        self._end_seconds = end_seconds
        self._jobs: Queue[tuple[str, Callable[[], object]] | None] = Queue(WAITING)
        self._failing: set[str] = set()
        # a daemon: a storage that never answers must not keep the process; the context holds Prefect's settings
        self._thread = threading.Thread(target=copy_context().run, args=(self._work,), name="bookkeeping", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        until = time.monotonic() + self._end_seconds
        try:
            self._jobs.put(None, timeout=self._end_seconds)
            self._thread.join(max(0.0, until - time.monotonic()))
        except Full:
            pass
        if self._thread.is_alive():
            self._say(f"{self._lacking} (what was left to write took more than {self._end_seconds:.0f} s)")

    def submit(self, name: str, job: Callable[[], object]) -> None:
        """Queues the job; waits while the queue is full."""
        self._jobs.put((name, job))

    def offer(self, name: str, job: Callable[[], object]) -> None:
        """Queues the job where the queue is empty, else drops it."""
        if self._jobs.empty():
            self.submit(name, job)

    def wait(self) -> None:
        """Waits until the jobs queued so far are done, but not for ever."""
        done, until = threading.Event(), time.monotonic() + self._end_seconds
        with suppress(Full):
            self._jobs.put(("waiting", done.set), timeout=self._end_seconds)
            done.wait(max(0.0, until - time.monotonic()))

    def _work(self) -> None:
        while (given := self._jobs.get()) is not None:
            name, job = given
            try:
                job()
                self._failing.discard(name)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is said, and it is not the run's fault
                if name not in self._failing:
                    self._say(f"warning: {name}: {str(error).strip().partition(chr(10))[0] or type(error).__name__}")
                self._failing.add(name)
