"""The leaves of the configuration that the learning reads. They stand apart from the code that imports torch, so that a
command line is parsed, and a mistake in it answered, at once."""

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field

TINY = "tiny"  # the policy that is made in code


class PolicyConfig(BaseModel):
    """Which model is trained and where its arithmetic runs."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    shorthand: ClassVar[str] = "model"

    model: str = Field(
        TINY, min_length=1, description="tiny, or anything transformers loads: a hub id or a local folder"
    )
    device: Literal["auto", "cuda", "mps", "cpu"] = Field(
        "auto", description="where each worker computes; auto takes CUDA, else MPS, else CPU"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="of generation and forward passes; auto is bfloat16 on CUDA, else float32"
    )


class SamplingConfig(BaseModel):
    """How completions are drawn. There is no top-p and no top-k: a cut distribution would falsify the ratios."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    temperature: float = Field(1.0, gt=0, le=10, description="of the softmax that tokens are drawn from")
    max_tokens: int = Field(40, ge=1, le=32768, description="completions are cut at this many new tokens")


class LossConfig(BaseModel):
    """What is optimised."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    shorthand: ClassVar[str] = "name"

    name: Literal["reinforce", "grpo"] = Field(
        "reinforce", description="reinforce: A = r - mean(group); grpo: A = (r - mean) / std, clipped ratio"
    )
    clip: float = Field(0.2, gt=0, lt=1, description="grpo: the ratio pi/mu is clipped to [1 - clip, 1 + clip]")
    ratio_cap: float = Field(
        2.0, gt=0, description="reinforce: weight pi/mu of a token from an older version is cut at this"
    )


class OptimizerConfig(BaseModel):
    """A linear warm-up of the learning rate, and gradient clipping."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["adamw", "muon"] = Field(
        "adamw", description="muon: orthogonalised momentum for the hidden matrices, adamw for everything else"
    )
    lr: float = Field(3e-4, gt=0, description="learning rate after the warm-up; about 1e-6 for a model of 0.5B or more")
    warmup_steps: int = Field(5, ge=0, description="updates over which the learning rate rises to lr")
    betas: tuple[float, float] = Field((0.9, 0.95), description="adamw: decay of the two moments")
    weight_decay: float = Field(0.0, ge=0, description="decoupled, as in AdamW")
    clip_norm: float = Field(1.0, gt=0, description="the gradient's norm is cut at this")
    microbatch_tokens: int | None = Field(
        None, ge=1, description="positions per forward pass; none takes 1024 on a CPU, 16384 elsewhere"
    )
