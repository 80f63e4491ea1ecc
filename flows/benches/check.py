"""What a bench has found of a promise."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Check:
    """One promise, whether it was kept, and by which figure."""

    name: str
    passed: bool
    figure: str
