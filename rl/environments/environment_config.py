"""The leaf of the configuration that says which environment is acted on."""

from typing import ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from rl.config import ENVIRONMENTS


class EnvironmentConfig(BaseModel):
    """The environment that a policy acts on, and the sandbox of its processes."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    shorthand: ClassVar[str] = "name"

    name: str | None = Field(
        None,
        min_length=1,
        description=f"{', '.join(ENVIRONMENTS)}, or a class of yours, guess.py:Guess, for completions of several "
        "turns: it answers each turn, and gives the reward in place of a verifier; null: completions of one turn",
    )
    sandbox: Literal["auto", "bubblewrap", "landlock", "none"] = Field(
        "auto",
        description="sandbox around guess.py, beside its limits; auto takes the first of them that works where it runs",
    )
    network: bool = Field(False, description="let guess.py reach the network from its sandbox")
    reads: tuple[str, ...] = Field(
        (), description="files and folders of the home, such as ~/.elan, that guess.py reads; it sees no others of it"
    )
    env: tuple[str, ...] = Field(
        (), description="environment variables that guess.py gets, such as WIKI_KEY; it sees no others"
    )

    @model_validator(mode="after")
    def _named(self) -> Self:
        if self.name is None and self.model_fields_set - {"name"} and self != type(self)():
            raise ValueError("name: says what the other options are of; give it, or leave them out")
        return self
