"""Calls of a step's costs, by name."""

from infra.planning.costs import Costs, Work


def work_of(costs: Costs, name: str) -> Work:
    """The call of that name."""
    return next(call for call in costs.calls if call.name == name)
