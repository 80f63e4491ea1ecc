"""The leaf of the configuration that says which environment is acted on."""

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

from rl.config import ENVIRONMENTS


class EnvironmentConfig(BaseModel):
    """What a policy acts on, and what stands around its processes."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    shorthand: ClassVar[str] = "name"

    name: str = Field(min_length=1, description=f"{', '.join(ENVIRONMENTS)}, or a class of yours, guess.py:Guess")
    sandbox: Literal["auto", "bubblewrap", "landlock", "none"] = Field(
        "auto", description="around guess.py, beside its limits; auto takes the first of them that works where it runs"
    )
    network: bool = Field(False, description="let guess.py reach the network from its sandbox")
    reads: tuple[str, ...] = Field(
        (), description="files and folders of the home, such as ~/.elan, that guess.py reads; it sees no others of it"
    )
    env: tuple[str, ...] = Field(
        (), description="environment variables that guess.py gets, such as WIKI_KEY; it sees no others"
    )
