"""What is said of a step in which a policy and its critic are updated."""

from dataclasses import replace

import pytest

from flows.run.models import both
from rl.records import Learned

POLICY = Learned(3, applied=True, groups=8, metrics={"loss/policy": 0.5}, kl_coefficient=0.1, seconds=2.0)
CRITIC = Learned(3, applied=True, groups=8, metrics={"critic/loss": 0.25}, seconds=3.0)
NOT_FINITE = "the loss of update 3 is not finite"
OF_CRITIC = "the gradient of the critic's update 3 is not finite"


def test_it_is_the_policys_with_the_critics_metrics_and_what_either_says() -> None:
    found = both(POLICY, replace(CRITIC, said="short of memory"), age=1)
    assert (found.step, found.applied, found.groups, found.kl_coefficient) == (3, True, 8, 0.1)
    assert found.metrics == {"loss/policy": 0.5, "critic/loss": 0.25, "critic/staleness": 1.0}
    assert (found.refused, found.refusals, found.said, found.seconds) == ("", 0, "short of memory", 3.0)
    assert both(replace(POLICY, said="slow"), replace(CRITIC, said="short")).said == "slow; short"
    assert "critic/staleness" not in both(POLICY, CRITIC).metrics


@pytest.mark.parametrize(
    ("policy", "critic", "refused", "refusals"),
    [
        (1, 0, NOT_FINITE, 1),
        (0, 2, OF_CRITIC, 2),
        (1, 2, OF_CRITIC, 2),  # whichever was refused more often in a row: that is what ends a run
        (3, 2, NOT_FINITE, 3),
        (1, 1, NOT_FINITE, 1),
    ],
)
def test_a_refused_update_of_either_counts(policy: int, critic: int, refused: str, refusals: int) -> None:
    of_policy = replace(POLICY, refusals=policy, refused=NOT_FINITE if policy else "", applied=not policy)
    of_critic = replace(CRITIC, refusals=critic, refused=OF_CRITIC if critic else "", applied=not critic)
    found = both(of_policy, of_critic)
    assert (found.refused, found.refusals, found.applied) == (refused, refusals, not policy)
