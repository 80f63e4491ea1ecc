"""Options of the critic: the value model that some algorithms learn beside the policy."""

from pydantic import BaseModel, ConfigDict, Field

from rl.learning.optimizer_config import OptimizerConfig

OF_CRITIC = "the critic's update"  # in what is said of one that was refused
FASTER = 3.0  # than the policy: it regresses on returns, and nothing is lost where it overshoots


class CriticConfig(BaseModel):
    """How the value model learns; for algorithms that have one."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    lr: float | None = Field(
        None, gt=0, description=f"learning rate; none takes {FASTER:g} times optimizer.lr; the rest is as of optimizer"
    )
    value_clip: float | None = Field(
        0.2,
        gt=0,
        description="a value counts as at most this far from the one that the batch was given, by the critic of up to "
        "staleness versions ago, where that makes its loss larger (PPO); null for none",
    )
    minibatches: int = Field(
        4, ge=1, description="optimizer steps in each pass over a batch, of a part of its groups each"
    )
    epochs: int = Field(1, ge=1, description="passes over a batch")

    def optimizer(self, of_policy: OptimizerConfig) -> OptimizerConfig:
        """The critic's optimizer, where the policy's is given."""
        return of_policy.model_copy(update={"lr": self.lr or FASTER * of_policy.rate})
