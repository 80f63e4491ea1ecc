"""The configuration of the divergence from a reference policy."""

from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

START = "start"  # as the reference: what a run starts from


class KlConfig(BaseModel):
    """KL divergence of the policy from a reference model, estimated from the sampled tokens (Schulman, "Approximating
    KL divergence", 2020): with d = log pi - log reference, k1 = d, k2 = d^2 / 2, k3 = exp(-d) - 1 + d."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    shorthand: ClassVar[str] = "coefficient"

    coefficient: float = Field(0.0, ge=0, description="weight of the divergence; 0: none, and no reference model")
    estimator: Literal["k1", "k2", "k3"] | None = Field(
        None, description="k1 = d, k2 = d^2/2, k3 = exp(-d)-1+d; null takes k3 in the loss and k1 in the reward"
    )
    in_reward: bool = Field(
        False, description="subtract it from the reward of each token instead of adding it to the loss"
    )
    target: float | None = Field(
        None,
        gt=0,
        description="target in nats per token, towards which the coefficient is adapted after each step; null: fixed "
        "coefficient",
    )
    reference: str = Field(
        START,
        min_length=1,
        description="the reference model: start, what the run starts from; RUN:STEP, a version that another run has "
        "published (RUN: its newest), or the model of a run on examples; or as policy.model, with the same tokenizer",
    )
    reference_every: int = Field(
        0, ge=0, description="steps after which the reference becomes the policy again; 0: it stays the start"
    )

    @model_validator(mode="after")
    def _has_an_effect(self) -> Self:
        if not self.coefficient:
            fields, names = (
                type(self).model_fields,
                ("estimator", "target", "in_reward", "reference", "reference_every"),
            )
            given = next((name for name in names if getattr(self, name) != fields[name].default), None)
            if given is not None:
                raise ValueError(f"{given}: needs a coefficient above 0")
        elif self.estimator == "k1" and not self.in_reward:
            raise ValueError(
                "estimator: the gradient of k1 in the loss is 0 on average; give k2, k3, or in_reward true"
            )
        elif self.in_reward and self.estimator not in (None, "k1"):
            raise ValueError(
                f"estimator: {self.estimator} in the reward punishes what has become less likely too, and leads away "
                "from the reference; leave it out, or in_reward"
            )
        if self.reference != START and self.reference_every:
            raise ValueError(
                f"reference: {self.reference} stays as it is, and with reference_every the reference is the policy of "
                "a step; leave out one of them"
            )
        return self

    @property
    def needs(self) -> frozenset[str]:
        """Fields of `Batch` that it is computed from."""
        return frozenset({"reference_logprobs"} if self.coefficient else ())

    @property
    def chosen(self) -> str:
        """The estimator, with its default resolved."""
        return self.estimator or ("k1" if self.in_reward else "k3")
