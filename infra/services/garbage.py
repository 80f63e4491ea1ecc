"""Garbage of a server with SQLite, collected where nothing waits for it.

A cursor that is found in a cycle of garbage is reset by whatever thread collects, and that waits while its connection
does: up to a minute for the lock of another connection's transaction. In an event loop's thread, which alone can end
that transaction, all of the server waits until SQLite gives up: `database is locked`.
"""

import gc
import threading
import time
from itertools import cycle

SECONDS = 1.0
YOUNG = 30  # collections of what is young for one of all


def collect_apart(seconds: float = SECONDS) -> None:
    """Have a thread of its own collect this process's garbage from now on; what is there by now is kept for good."""

    def collect() -> None:
        for generation in cycle([1] * YOUNG + [2]):
            time.sleep(seconds)
            gc.collect(generation)

    gc.disable()
    gc.freeze()
    threading.Thread(target=collect, name="garbage", daemon=True).start()
