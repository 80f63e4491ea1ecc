"""The configuration of LoRA."""

from typing import Annotated, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator


class LoraConfig(BaseModel):
    """Low-rank adapters on a frozen model, in place of training all of its parameters (arXiv 2106.09685)."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    shorthand: ClassVar[str] = "rank"

    rank: int = Field(
        0,
        ge=0,
        le=1024,
        description="rank of the adapters, such as 16; they alone are trained; 0 trains all parameters",
    )
    # constant, so that the best learning rate does not depend on the rank (Schulman et al., LoRA Without Regret, 2025)
    alpha: float = Field(32.0, gt=0, le=4096, description="what an adapter adds is scaled by alpha / rank")
    targets: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (),
        description="layers that get adapters, such as q_proj,v_proj; empty takes all linear layers but the head",
    )
    base: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="dtype that the frozen weights are kept in, and rounded to; auto takes policy.dtype"
    )

    @model_validator(mode="after")
    def _of_adapters(self) -> Self:
        given = [name for name, field in type(self).model_fields.items() if getattr(self, name) != field.default]
        if self.rank == 0 and given:
            raise ValueError(
                f"{given[0]} is of adapters, and rank is 0, which trains all parameters; give a rank, such as 16"
            )
        return self


class OtherBaseError(ValueError):
    """A model is another than the one that adapters were trained on."""
