"""A configuration to read: sections, lists, bounds and what is required."""

from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from flows.commands.parser import OneLineParser
from flows.options.reading import add_options, read_config


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Loss(Section):
    """How an update is computed."""

    name: Literal["reinforce", "grpo"] = Field("reinforce", description="which objective")
    clip: float = Field(0.2, description="half-width of the clip range, 20% unless said", gt=0, le=1)


class Policy(Section):
    shorthand: ClassVar[str] = "model"
    model: str = Field("tiny", description="a built-in name or a folder")
    device: Literal["cuda", "cpu"] | None = Field(None, description="where it runs")


class Deep(Section):
    roles: tuple[Literal["GENERATOR", "TRAINER"], ...] = Field(("TRAINER",), description="role tags")
    threads: int | None = Field(None, description="threads for each worker", ge=1)


class Cluster(Section):
    address: str | None = Field(None, description="of a scheduler that runs already")
    tags: tuple[str, ...] = Field((), description="what workers offer")
    worker: Deep = Field(Deep(threads=2), description="one worker")

    @field_validator("address")
    @classmethod
    def _has_a_port(cls, address: str | None) -> str | None:
        if address is not None and ":" not in address:
            raise ValueError("has no port; write host:port")
        return address


class Critic(Section):
    lr: float = Field(1e-4, description="learning rate", gt=0, allow_inf_nan=False)
    layers: int = Field(2, description="depth")


class Job(Section):
    steps: int = Field(10, description="how many updates", ge=1)
    deterministic: bool = Field(False, description="bit-identical runs")
    loss: Loss = Field(Loss(name="grpo"), description="the objective")
    policy: Policy = Policy()
    cluster: Cluster = Field(Cluster(), description="the machines")
    critic: Critic = Field(Critic(), description="a value model")

    @model_validator(mode="after")
    def _enough_steps(self) -> "Job":
        if self.critic.layers > 8 and self.steps < 2:
            raise ValueError("steps: 1 is too few for so deep a critic; give at least 2")
        return self


class Wanted(Section):
    source: str = Field("made.csv", description="a CSV file")


def parsed(*words: str, model: type[BaseModel] = Job) -> Any:
    parser = OneLineParser(prog="rlvf train")
    add_options(parser, model)
    args = parser.parse_args(words)
    return read_config(model, file=args.config, overrides=args.overrides)


class Several(Section):
    first: Policy = Policy()
    more: tuple[Wanted, ...] = Field((), description="further ones")
