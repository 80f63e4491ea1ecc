"""Waiting for a storage that is away: again with growing pauses, so that a cut link costs time and nothing else."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import tenacity

from infra.storage.faults import may_pass

T = TypeVar("T")
FIRST_PAUSE, LONGEST_PAUSE = 0.25, 8.0  # seconds; each pause is a random part of twice the one before


@dataclass(frozen=True)
class RetryPolicy:
    """How long to wait for a storage."""

    seconds: float
    of: tuple[type[Exception], ...] = ()  # errors that may pass; none: those of a storage that is away
    check: Callable[[], None] = lambda: None  # called about four times a second in every pause; may raise

    def __call__(self, job: Callable[..., T], *args: Any) -> T:
        """What `job(*args)` returns; it is tried again while it raises what may pass. Raises what it raised last."""
        passes = may_pass if not self.of else lambda error: isinstance(error, self.of)
        retrying = tenacity.Retrying(
            retry=tenacity.retry_if_exception(passes),
            wait=tenacity.wait_random_exponential(FIRST_PAUSE, LONGEST_PAUSE, min=FIRST_PAUSE / 2),
            stop=tenacity.stop_after_delay(self.seconds),
            sleep=self._pause,
            reraise=True,
        )
        return retrying(job, *args)

    def _pause(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        self.check()
        while (left := until - time.monotonic()) > 0:
            time.sleep(min(0.25, left))
            self.check()
