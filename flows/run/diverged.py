"""When a run is stopped because it learns nothing any more."""

from rl.learning.critic_config import OF_CRITIC
from rl.records import Learned

REFUSALS = 3  # non-finite updates in a row that end a run


class DivergedError(RuntimeError):
    """Several updates in a row had a loss or gradient that is not finite."""


def stop_if_diverged(learned: Learned) -> None:
    """Raises DivergedError."""
    if learned.refusals >= REFUSALS:
        rate = "critic.lr" if OF_CRITIC in learned.refused else "optimizer.lr"
        raise DivergedError(f"{learned.refusals} updates in a row were refused: {learned.refused}; lower {rate}")
