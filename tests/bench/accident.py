"""A fault of `tests/bench/faults.py`, and a run that it happens to."""

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.benches.stage import PATIENCE, Stage
from tests.processes import until

AFTER = 3  # the fault is made when this step is logged


@dataclass
class Accident:
    """A run in which a fault is made."""

    stage: Stage
    run: Path
    process: Any
    over: threading.Event = field(default_factory=threading.Event)
    at: float = 0.0  # when it was made
    back: float | None = None  # seconds until what was killed was there again

    def now(self) -> None:
        self.at = time.time()

    def until_back(self, is_back: Callable[[], bool]) -> None:
        until(is_back, PATIENCE, every=0.05)
        self.back = time.time() - self.at


@dataclass(frozen=True)
class Fault:
    """`make` makes it, and what it is about comes back."""

    make: Callable[[Accident], None]
    ends: bool = False  # the run may end by it, and is resumed then
    says: str = ""  # what its last line says then; a run that is killed says nothing
    around: Callable[[Stage], AbstractContextManager[object]] = lambda _: nullcontext()  # as the run finds things
    lacks: Callable[[], str] = lambda: ""  # what this machine lacks for it
    long: bool = False  # it takes minutes
