"""When a run that learns nothing any more is stopped, and what its user is told to lower."""

import pytest

from flows.run.diverged import REFUSALS, DivergedError, stop_if_diverged
from rl.learning.critic_config import OF_CRITIC
from rl.records import Learned


@pytest.mark.parametrize(("of", "rate"), [("update", "optimizer.lr"), (OF_CRITIC, "critic.lr")])
def test_the_rate_of_the_model_whose_updates_were_refused_is_to_be_lowered(of: str, rate: str) -> None:
    refused = Learned(7, applied=False, refused=f"the loss of {of} 7 is not finite", refusals=REFUSALS - 1)
    stop_if_diverged(refused)
    with pytest.raises(DivergedError, match=rf"^3 updates in a row were refused: the loss of {of} 7.*; lower {rate}$"):
        stop_if_diverged(Learned(8, applied=True, refused=refused.refused, refusals=REFUSALS))
