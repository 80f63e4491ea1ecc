"""Retries with growing pauses while a storage is away, so that a cut link costs time and nothing else."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import tenacity

from infra.errors import one_line
from infra.security.secrets import masked
from infra.storage.faults import may_pass

T = TypeVar("T")
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 8.0  # seconds; each pause is a random part of twice the one before
LONGEST = 200  # characters of an error

_waits: dict[int, str] = {}  # what each thread of this process waits for


def waits() -> str:
    """The errors for which calls of this process wait for a storage; empty where none waits."""
    return "; ".join(dict.fromkeys(_waits.copy().values()))


@dataclass(frozen=True)
class RetryPolicy:
    """How long a storage may be away."""

    seconds: float
    of: tuple[type[Exception], ...] = ()  # errors to retry after; none: those of a storage that is away
    check: Callable[[], None] = lambda: None  # called about four times a second in every pause; may raise

    def __call__(self, job: Callable[..., T], *args: Any) -> T:
        """What `job(*args)` returns; it is retried after such an error. Raises what it raised last."""
        passes = may_pass if not self.of else lambda error: isinstance(error, self.of)
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(passes),
            wait=tenacity.wait_random_exponential(FIRST_PAUSE, LONGEST_PAUSE, min=FIRST_PAUSE / 2),
            stop=tenacity.stop_after_delay(self.seconds),
            before_sleep=lambda state: _note(state, args),
            sleep=self._pause,
            reraise=True,
        )
        try:
            return retrying(job, *args)
        finally:
            _waits.pop(threading.get_ident(), None)

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self.check()
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(0.25, left))
            self.check()


def _note(state: tenacity.RetryCallState, args: tuple[Any, ...]) -> None:
    assert state.outcome is not None
    error = state.outcome.exception()
    assert error is not None
    words = one_line(error)
    of = [each for each in args[:1] if isinstance(each, str) and each not in words]  # the URI, if it is one's
    _waits[threading.get_ident()] = masked(": ".join([*of, words]))[:LONGEST]
