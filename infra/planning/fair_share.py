"""How fast each of several processes goes that share the cores of a machine."""

from collections.abc import Mapping
from functools import lru_cache

ROUNDS = 40  # of halving


def rates(wants: Mapping[str, float], cores: float, others: float = 0.0) -> dict[str, float]:
    """The share of its own pace, in (0, 1], that each process has. `wants`: cores that it would use alone; `others`:
    those that all other programs would.

    Threads that are ready share the cores alike. A process that wants more than one core has as many threads. One that
    wants less computes now and then, for moments, and waits for something else between them, which takes as long as
    ever: that is a closed queueing network with processor sharing, by its mean values.
    """
    ready = _ready(tuple(sorted(wants.values())), cores, others)
    return {name: _pace(want, ready) for name, want in wants.items()}


@lru_cache(4096)  # simulated steps are alike
def _ready(wants: tuple[float, ...], cores: float, others: float) -> float:
    """The share of a core that a thread has when it is ready."""
    if sum(wants) + others <= cores:
        return 1.0
    least, most = 0.0, 1.0
    for _ in range(ROUNDS):
        ready = (least + most) / 2
        used = sum(want * _pace(want, ready) for want in wants) + others * ready
        least, most = (ready, most) if used < cores else (least, ready)
    return most


def _pace(want: float, ready: float) -> float:
    computing = min(want, 1.0)
    return 1 / (1 - computing + computing / ready)
