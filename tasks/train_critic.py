"""The critic's update: beside the policy's where it has a worker of its own, saved before it counts."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from infra.dispatch.dispatch import Dispatch
from rl.records import Batch, Learned
from tasks.calls.critic import Critic


@task(name="train_critic", task_run_name="train critic {step}", cache_policy=NO_CACHE)
def train_critic(
    dispatch: Dispatch, critic: Critic, step: int, batch: Batch, kl_coefficient: float | None = None
) -> Learned:
    """Make version ``step + 1`` of the critic, from a batch with values, whose returns are those that the policy learns
    from: see `Critic.advance`. When this returns, its checkpoint is durable if ``checkpoint.every`` makes one of this
    version."""
    return dispatch.run("train_critic", critic.advance, step, batch, kl_coefficient)
