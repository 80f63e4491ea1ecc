"""What the streams of problems that are made in code have in common: their sides, and where each is defined."""

from typing import Literal

from rl.config import PLAYED

Side = Literal["train", "held_out"]


def module_of(name: str) -> str:
    """The module of a set: of problems that are made, or of those that are played on an environment."""
    return f"rl.problems.{'played' if name in PLAYED else 'made'}.{name}"
