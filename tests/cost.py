"""What a piece of code costs."""

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass
class Cost:
    seconds: float = 0.0


@contextmanager
def processor_time() -> Iterator[Cost]:
    """Processor seconds of this thread, which a busy machine does not lengthen, without those of the garbage collector:
    it walks through all that other tests have left, for half a second where that is a million objects."""
    cost = Cost()
    collects = gc.isenabled()
    gc.disable()
    began = time.thread_time()
    try:
        yield cost
    finally:
        cost.seconds = time.thread_time() - began
        if collects:
            gc.enable()
