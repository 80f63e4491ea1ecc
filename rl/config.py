"""The leaves of the configuration that the learning reads. They stand apart from the code that imports torch, so that a
command line is parsed, and a mistake in it answered, at once."""

import re
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from rl.lora_config import LoraConfig

TINY = "tiny"  # the policy that is made in code
OURS = "rlvf"  # the engine in rl/sampling
USUAL_PORTS = {"http": ":80", "https": ":443"}
COLDEST_SERVED = 0.01  # temperature: vLLM takes no lower one as it is
TINY_PARAMETERS = 905_984  # that it has
MOST_TOKENS = 32768  # of a completion
PICKLED = (
    "pickled weights (pytorch_model.bin) are never read, because they can run code; convert them where you trust them, "
    "with save_pretrained"
)


def _modules(*room: str) -> tuple[str, ...]:
    """Names of the modules in a room beside this file; none of them is imported."""
    return tuple(sorted(file.stem for file in Path(__file__).parent.joinpath(*room).glob("[a-z]*.py")))


MADE = _modules("problems", "made")  # problems that are made in code
PLAYED = _modules("problems", "played")  # those of the environments of these names
IN_CODE = (*MADE, *PLAYED)
GYM = "reasoning-gym:"  # how the name of a set begins that the package of that name makes
VERIFIERS = _modules("verifiers", "built_in")
ENVIRONMENTS = _modules("environments", "built_in")
QUESTIONS = ("prompt", "question", "problem", "query", "input", "instruction")  # as others call a problem in a template
REWARD_MODEL = "reward-model:"  # how the name of a verifier begins that is a trained model
AUTO = "auto"  # the verifier that goes with the problems


def is_made(problems: str) -> bool:
    """Whether a set is made in code, of one turn, and has a verifier of its own."""
    return problems in MADE or problems.startswith(GYM)


def is_in_code(problems: str) -> bool:
    """Whether a set is made in code, and is no path."""
    return is_made(problems) or problems in PLAYED


def whole_path(model: str) -> str:
    """The model by a name that holds in any working directory: a folder by its absolute path. As in transformers, a
    folder comes before an id of the hub."""
    return str(Path(model).absolute()) if model != TINY and Path(model).is_dir() else model


class PolicyConfig(BaseModel):
    """The model that is trained, its device and its arithmetic."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    shorthand: ClassVar[str] = "model"

    model: str = Field(
        TINY,
        min_length=1,
        description="tiny; a run of rlvf sft or dpo; or anything transformers loads: a hub id or a local folder",
    )
    device: Literal["auto", "cuda", "mps", "cpu"] = Field(
        "auto", description="device of each worker; auto takes CUDA, else MPS, else CPU"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto",
        description="dtype of generation and forward passes; auto is bfloat16 on CUDA and on processors that multiply "
        "it faster (for models of 50M parameters or more), else float32",
    )
    engine: str = Field(
        OURS,
        description="generation engine: rlvf, or http://127.0.0.1:PORT of a vLLM server beside each generator",
    )
    lora: LoraConfig = Field(LoraConfig(), title="Lora")  # pydantic gives a section none

    @field_validator("engine")
    @classmethod
    def _address(cls, engine: str) -> str:
        if engine == OURS:
            return engine
        if (found := re.fullmatch(r"(https?)://([^\s/?#@]+?)(:\d+)?(/v1)?/?", engine, re.IGNORECASE)) is None:
            raise ValueError(f"give {OURS}, or the address of a server, such as http://127.0.0.1:8000")
        # one spelling: by it the processes of a machine know that they mean the same server
        scheme, host, port = found[1].lower(), found[2].lower(), found[3] or ""
        host = "127.0.0.1" if host == "localhost" else host
        return f"{scheme}://{host}{'' if port == USUAL_PORTS[scheme] else port}"

    @model_validator(mode="after")
    def _whole_weights(self) -> Self:
        if self.engine != OURS and self.lora.rank:
            raise ValueError("engine: a server is given whole weights; leave out one of policy.engine and policy.lora")
        return self

    @model_validator(mode="after")
    def _goes_with_the_arithmetic(self) -> Self:
        if self.lora.rank and {self.dtype, self.lora.base} == {"bfloat16", "float16"}:
            raise ValueError(f"lora.base: {self.lora.base} does not go with policy.dtype {self.dtype}; give auto")
        return self

    @property
    def whole(self) -> Self:
        """The same without adapters."""
        return self.model_copy(update={"lora": LoraConfig()})


class SamplingConfig(BaseModel):
    """How completions are sampled. There is no top-p and no top-k: a cut distribution would falsify the ratios."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: float = Field(1.0, gt=0, le=10, description="softmax temperature of sampling")
    max_tokens: int | None = Field(
        None,
        ge=1,
        le=MOST_TOKENS,
        description="completions are cut at this many new tokens; null takes 40 for a policy of less than 20M "
        "parameters, else 64 to 1024 by the verifier, or with an environment 24 or 256 for each of its turns, and "
        "prints it",
    )
    stop: tuple[Annotated[str, Field(min_length=1)], ...] = Field(
        (),
        description="texts that end a completion, as the model's own end tokens do; they are not judged",
    )

    @property
    def limit(self) -> int:
        """`max_tokens`, which is resolved before anything is sampled."""
        assert self.max_tokens is not None
        return self.max_tokens


class ProblemsConfig(BaseModel):
    """A set of problems, and how it is judged."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    shorthand: ClassVar[str] = "path"

    path: str = Field(
        "arithmetic",
        min_length=1,
        description=f"{', '.join(MADE)}, {GYM}TASK, with an environment {', '.join(PLAYED)}, or a path, URI or glob "
        "of CSV, JSON Lines or Parquet files",
    )
    prompt: str | None = Field(None, min_length=1, description="column of the question; null looks for a usual name")
    target: str | None = Field(None, min_length=1, description="column of the answer; null looks for a usual name")
    weight: float = Field(1.0, gt=0, le=1e6, description="how often this set is drawn from, relative to those of mix")
    verifier: str | None = Field(None, min_length=1, description="verifier of this set; null takes verifier.name")
    system: str | None = Field(
        None, description="system prompt, for a model with a chat template; null takes the verifier's own"
    )
    template: str | None = Field(
        None,
        description="the whole prompt in place of the model's chat template, with {prompt} and optionally {system} in "
        "it: for base models",
    )

    @property
    def judged(self) -> bool:
        """Whether it has a verifier of its own, beside an environment too."""
        return self.verifier is not None or is_made(self.path)

    @model_validator(mode="before")
    @classmethod
    def _bare_path(cls, given: Any) -> Any:
        """Text alone is the path, as configurations saved before there was more to say have it."""
        return {"path": given} if isinstance(given, str) else given

    @model_validator(mode="after")
    def _places(self) -> Self:
        if self.template is not None and "{prompt}" not in self.template:
            raise ValueError(
                "template: has no {prompt} in it, so that every problem would be the same; its places are {prompt} and "
                f"{{system}}, whatever the columns are called{_meant(self.template)}"
            )
        if self.template is not None and self.system and "{system}" not in self.template:
            raise ValueError("system: is given, but template has no {system} in it; leave one of them out")
        return self


def _meant(template: str) -> str:
    """The place of a template that looks like the problem's, as a question; empty where none does."""
    for place in re.findall(r"\{(\w+)\}", template):
        if get_close_matches(place.lower(), QUESTIONS, 1, 0.75):
            return f"; did you mean {{prompt}} for {{{place}}}?"
    return ""


class VerifierConfig(BaseModel):
    """What judges completions."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    shorthand: ClassVar[str] = "name"

    name: str = Field(
        AUTO,
        min_length=1,
        description=f"{', '.join(VERIFIERS)}, my_reward.py:reward, https://host:port of a service, or "
        "reward-model:RUN of a run of rlvf reward-model; auto "
        "takes that of problems made in code, which allow no other built-in one, else arithmetic",
    )
    reward_model: str | None = Field(
        None, min_length=1, description="a run of rlvf reward-model, whose score is added to the verifier's reward"
    )
    reward_model_weight: float = Field(1.0, gt=0, le=1e3, description="weight of that score")
    seconds: float = Field(
        5.0,
        gt=0,
        le=3600,
        description="time-out of my_reward.py or math for one completion, after which its process is killed",
    )
    memory_mb: int = Field(
        1024,
        ge=64,
        description="MB of address space of a process of my_reward.py or math, and of memory with all that it starts",
    )
    timeout_reward: float | None = Field(
        None,
        ge=-1e6,  # as for any reward: rl.verifiers.parts
        le=1e6,
        allow_inf_nan=False,
        description="reward of a completion on which my_reward.py or math times out; with null nothing is learned from "
        "it, 0 teaches to avoid it",
    )
    sandbox: Literal["auto", "bubblewrap", "landlock", "none"] = Field(
        "auto",
        description="sandbox around my_reward.py or math, beside its limits; auto takes the first of them that works "
        "where it judges",
    )
    network: bool = Field(False, description="let my_reward.py reach the network from its sandbox")
    truncated: Literal["auto", "zero", "judged"] = Field(
        "auto",
        description="reward of a completion that was cut at sampling.max_tokens; auto is zero for the built-in "
        "verifiers, which look for the answer at the end, and judged for yours",
    )
    reads: tuple[str, ...] = Field(
        (),
        description="files and folders of the home, such as ~/.elan, that my_reward.py reads; its sandbox shows no "
        "others of the home",
    )
    env: tuple[str, ...] = Field(
        (), description="environment variables that my_reward.py gets, such as OPENAI_API_KEY; it sees no others"
    )

    @model_validator(mode="after")
    def _weight_of_a_model(self) -> Self:
        if self.reward_model is None and self.reward_model_weight != 1:
            alone = "; the score of reward-model:RUN stands alone" if self.name.startswith(REWARD_MODEL) else ""
            raise ValueError(f"reward_model_weight: is the factor of a model's score; name it: reward_model RUN{alone}")
        return self
