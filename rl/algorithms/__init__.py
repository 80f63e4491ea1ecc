"""Algorithms turn a batch's rewards into a loss. A module of this room that has an ``ALGORITHM`` is one: formulas,
options, metrics."""

from importlib import import_module
from pkgutil import iter_modules

from rl.algorithms.algorithm import Algorithm

_modules = {module.name: import_module(f"{__name__}.{module.name}") for module in iter_modules(__path__)}
ALGORITHMS: dict[str, type[Algorithm]] = {
    name: module.ALGORITHM for name, module in _modules.items() if hasattr(module, "ALGORITHM")
}

__all__ = ["ALGORITHMS", "Algorithm"]
