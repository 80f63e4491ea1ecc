"""The leaf of the configuration that says how the tiny policy is warmed up."""

from pydantic import BaseModel, ConfigDict, Field, field_validator

from rl.config import IN_CODE
from rl.learning.optimizer_config import OptimizerConfig
from rl.problems.shown import shown_of


class WarmUpConfig(BaseModel):
    """The supervised start of the tiny policy, on problems that are made in code. The result is kept and used again."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    problems: str | None = Field(
        None,
        description="problems to demonstrate; null takes those of the run if they have demonstrations (functions, "
        "calculator, guess, hanoi), else grammar",
    )
    steps: int | None = Field(
        None, ge=1, description="updates; null takes as many as keep sampling varied: 330 of grammar"
    )
    batch: int = Field(16, ge=1, description="problems per update")
    optimizer: OptimizerConfig = Field(
        OptimizerConfig(name="muon", lr=6e-3, warmup_steps=20, betas=(0.9, 0.98)), title="Optimizer"
    )
    seed: int = Field(0, ge=0, lt=2**32, description="seed of the fresh weights and the problems")

    @field_validator("problems")
    @classmethod
    def _can_be_shown(cls, given: str | None) -> str | None:
        if given is not None and shown_of(given) != given:
            some = ", ".join(name for name in IN_CODE if shown_of(name) == name)
            raise ValueError(f"{given}: there is nothing to show of it; there is of {some}")
        return given
