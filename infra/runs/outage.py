"""What a person is told of an MLflow that takes nothing: why, and at the end what it lacks."""

from collections.abc import Mapping

from infra.security.secrets import masked
from infra.storage.faults import explained

NOT_OURS = "system/"  # metrics of MLflow's own, which count their own steps
LENGTH = 300


def why(error: Exception, is_served: bool) -> str:
    """One line for what MLflow, or the storage of its files, raised. Where this machine writes its database, a full
    disk is called that: SQLAlchemy puts other words first."""
    known = None if is_served else explained(error)
    return masked(known or str(error).strip().partition("\n")[0] or type(error).__name__)[:LENGTH]


def lacks(has: Mapping[str, int], logged: Mapping[str, int]) -> str:
    """What of a run that ends MLflow was not told, and what mends that; by the last step of each metric that it
    ``has``, {} where it was not reached in this session, and that was ``logged``."""
    reached = max((step for name, step in has.items() if not name.startswith(NOT_OURS)), default=None)
    last = max(logged.values(), default=0)
    if reached is None:
        there = "was told nothing of this session"
    elif reached < last:
        there = f"has this run up to step {reached} of {last} only"
    else:
        there = "was not told all of the end of this run"
    return f"{there}; `rlvf train --resume RUN` brings the rest"
