"""Options of the critic: the value model that some algorithms learn beside the policy."""

from pydantic import BaseModel, ConfigDict, Field

from rl.learning.optimizer_config import OptimizerConfig

OF_CRITIC = "the critic's update"  # in what is said of one that was refused
FASTER = 3.0  # than the policy: it regresses on returns, and nothing is lost where it overshoots


class CriticConfig(BaseModel):
    """How the value model learns; for algorithms that have one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lr: float | None = Field(
        None, gt=0, description=f"learning rate; null takes {FASTER:g} times optimizer.lr; the rest is as in optimizer"
    )
    value_clip: float | None = Field(
        0.2,
        gt=0,
        description="PPO's value clip: a value counts as at most this far from the batch's, of the critic up to "
        "staleness versions ago, where that makes its loss larger; null for none",
    )
    minibatches: int = Field(4, ge=1, description="optimizer steps per pass over a batch, each on a part of its groups")
    epochs: int = Field(1, ge=1, description="passes over a batch")

    def optimizer(self, of_policy: OptimizerConfig) -> OptimizerConfig:
        """The critic's optimizer, where the policy's is given."""
        return of_policy.model_copy(update={"lr": self.lr or FASTER * of_policy.rate})
