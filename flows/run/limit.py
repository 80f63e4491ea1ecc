"""What limits a run, looked at now and then while it goes on."""

import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import chain

from flows.planner.limits import LAST, limit_of_steps
from flows.planner.measured import FIGURES, machines_of
from infra.cluster.timeline import Span
from rl.graph import Graph

FIRST = 8  # steps of a session after which it is looked at; then after twice as many, and so on


class RunningLimit:
    """Of the last steps of this session."""

    def __init__(
        self, graph: Graph, staleness: int, machines: Callable[[], Mapping[str, tuple[str, int]]], *, cut: bool
    ) -> None:
        """`machines`: of each worker that is there, and its cores; raises OSError where nobody says. `cut`: leases are
        as large as suits each worker."""
        self._graph, self._staleness, self._machines, self._cut = graph, staleness, machines, cut
        self._spans: deque[Sequence[Span]] = deque(maxlen=LAST + 2)  # by step
        self._figures: dict[str, deque[float]] = {name: deque(maxlen=LAST + 2) for name in FIGURES}
        self._steps, self._due = 0, FIRST
        self._lock = threading.Lock()

    def add(self, spans: Sequence[Span], figures: Mapping[str, float]) -> bool:
        """Take in a step; whether it is time to look."""
        with self._lock:
            self._spans.append(spans)
            for name, values in self._figures.items():
                if name in figures:
                    values.append(figures[name])
            self._steps += 1
            if self._steps < self._due:
                return False
            self._due *= 2
            return True

    def words(self) -> str:
        """The sentence; empty where there are too few steps, or the scheduler is away."""
        try:
            machines = machines_of(self._machines())
        except OSError:
            return ""
        with self._lock:
            spans = list(chain.from_iterable(self._spans))
            figures = {name: list(values) for name, values in self._figures.items()}
        found = limit_of_steps(self._graph, self._staleness, spans, figures, machines, cut=self._cut)
        return "" if found is None else found.words()
