"""Algorithms turn a batch's rewards into a loss. Each module of this room but those in `SHARED` is one, by its
``ALGORITHM``: formulas, options, metrics."""

from importlib import import_module
from pkgutil import iter_modules

from rl.algorithms.algorithm import Algorithm

SHARED = ("algorithm", "gae")  # what algorithms are made of

ALGORITHMS: dict[str, type[Algorithm]] = {
    module.name: import_module(f"{__name__}.{module.name}").ALGORITHM
    for module in iter_modules(__path__)
    if module.name not in SHARED
}

__all__ = ["ALGORITHMS", "Algorithm"]
