"""Workers that may run a reward model."""

import pytest
from distributed import Client

from infra.cluster.placement import PlacementConfig, PlacementError
from infra.dispatch.dispatch import Dispatch
from rl.verifiers.spec import VerifierSpec
from tasks.reward import check_rewards
from tests.lone_worker import lone_worker

OFFERED = dict.fromkeys(("CPU", "GENERATOR", "TRAINER", "VERIFIER"), 1)


def test_a_run_with_a_reward_model_requires_them_from_then_on() -> None:
    """So they are waited for where the scheduler is lost, as those of its other calls are."""
    with (
        lone_worker("all", OFFERED) as scheduler,
        Client(scheduler, set_as_default=False) as client,
        Dispatch(client, PlacementConfig(reward=("CUDA",))) as dispatch,
    ):
        check_rewards(dispatch, {"sums": VerifierSpec(name="arithmetic")}, [])
        assert "reward" not in dispatch.required
        with pytest.raises(PlacementError, match=r"^placement.reward needs CUDA but no worker offers CUDA"):
            check_rewards(dispatch, {"sums": VerifierSpec(name="arithmetic", reward_model="/none")}, [])
        assert "reward" in dispatch.required
