"""How fast each of several processes goes that share the cores of a machine."""

from collections.abc import Mapping, Sequence
from math import inf


def rates(wants: Mapping[str, float], cores: float, others: float = 0.0) -> dict[str, float]:
    """The share of its own pace, in (0, 1], that each process has. `wants`: cores that it would use alone; `others`:
    those that all other programs would.

    Cores are shared as a scheduler does that is fair to threads: whoever wants less than an equal share has it, and
    the others share the rest. A process that wants more than one core has as many threads.
    """
    level = _level([*wants.values(), others], cores)
    return {name: min(1.0, level * max(1.0, want) / want) if want > 0 else 1.0 for name, want in wants.items()}


def _level(wants: Sequence[float], cores: float) -> float:
    """The cores that a thread has at most."""
    if sum(wants) <= cores:
        return inf
    left, threads = cores, sum(max(1.0, want) for want in wants if want)
    for want in sorted(filter(None, wants)):
        if min(want, 1.0) >= left / threads:
            break
        left -= want
        threads -= max(1.0, want)
    return left / threads
