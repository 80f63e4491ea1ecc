"""An assignment that a worker has."""

import time
from dataclasses import dataclass, field
from typing import Any

from distributed import Future

from infra.cluster.placement import Offer
from infra.cluster.timeline import Measured
from infra.dispatch.lease_batch import LeaseBatch


@dataclass(frozen=True)
class HandedOut:
    """Of which batch, to whom, and since when."""

    batch: LeaseBatch
    worker: Offer
    future: Future[Measured[Any]]
    since: float  # seconds since 1970
    began: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since the worker has it, whatever becomes of the clock."""
        return time.monotonic() - self.began
