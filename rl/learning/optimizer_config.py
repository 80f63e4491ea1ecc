"""Options of the optimizer, and of the memory that an update takes."""

import importlib.util
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

STATE = {"AdamW": 8, "Muon": 4, "AdamW8bit": 2}  # bytes that a parameter's has, by the optimizer's class
LEARNT = 8  # bytes of a parameter in training, and of its gradient


class OptimizerConfig(BaseModel):
    """The optimizer, its learning rate with a linear warm-up, and gradient clipping."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: Literal["adamw", "muon"] = Field(
        "adamw", description="muon: orthogonalised momentum for the hidden matrices, adamw for everything else"
    )
    state: Literal["float32", "8bit"] = Field(
        "float32",
        description="adamw: the moments take 8 bytes a parameter in float32, in 8bit 2, except of embeddings and head, "
        "by bitsandbytes (pip install bitsandbytes), which is made for CUDA: on a CPU its step takes about ten times "
        "as long",
    )
    lr: float | None = Field(
        None,
        gt=0,
        description="learning rate after the warm-up; null takes 3e-4 below 20M parameters, falling to 1e-6 from 500M "
        "on (rlvf sft, reward-model: 1e-3 to 1e-5; adapters: ten times that, up to 2e-4), over the square root of a "
        "staleness above 1, and prints it",
    )
    warmup_steps: int = Field(5, ge=0, description="optimizer steps over which the learning rate rises to lr")
    decay: Literal["none", "linear", "cosine"] = Field(
        "none", description="how the learning rate falls after the warm-up, to 0 at the end of steps"
    )
    betas: tuple[float, float] = Field((0.9, 0.95), description="adamw: decay rates of the two moments")
    weight_decay: float = Field(0.0, ge=0, description="decoupled, as in AdamW")
    clip_norm: float = Field(1.0, gt=0, description="gradients are clipped to this norm")
    microbatch_tokens: int | None = Field(
        None,
        ge=1,
        description="positions per forward pass; null takes 1024 on a CPU, 16384 elsewhere, or what fits into memory",
    )
    checkpointing: Literal["auto", "on", "off"] = Field(
        "auto",
        description="activation checkpointing: the backward pass recomputes each layer, for a third more time and a "
        "fraction of the memory; auto does where memory is short, or would be more than the frozen model of adapters "
        "takes",
    )

    @model_validator(mode="after")
    def _state_of_adamw(self) -> Self:
        if self.state != "float32" and self.name != "adamw":
            raise ValueError(f"state: {self.state} is for adamw; name is {self.name}")
        return self

    def check_installed(self) -> None:
        """Raise ValueError where this process lacks the package that it needs."""
        if self.state == "8bit" and importlib.util.find_spec("bitsandbytes") is None:
            raise ValueError("optimizer.state 8bit: needs bitsandbytes; pip install bitsandbytes")

    @property
    def training_bytes(self) -> int:
        """Bytes of a parameter in training, with its gradient and its state: at least, where hidden matrices have an
        optimizer of their own, and embeddings and head AdamW's 16."""
        hidden = "Muon" if self.name == "muon" else "AdamW8bit" if self.state == "8bit" else "AdamW"
        return LEARNT + STATE[hidden]

    @property
    def rate(self) -> float:
        """The learning rate, which is resolved before anything is trained."""
        assert self.lr is not None
        return self.lr
