"""A model being trained, with its optimizer: what a policy's learner and a critic's have in common."""

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Generic, TypeVar

import torch
from pydantic import AliasChoices, Field, TypeAdapter
from safetensors.torch import load_file, save_file
from torch import Tensor

from rl.learning.optimizer_config import OptimizerConfig
from rl.learning.optimizers import OptimizedMemory, build_optimizers, restore_state, standing_bytes, state_tensors
from rl.learning.passes import Accumulation, Passes
from rl.model.memory import less_memory, room_for
from rl.model.policy import Policy, read_weights, save_policy
from rl.records import Learned

M = TypeVar("M", bound=Policy)
ALIGNMENT = 64  # bytes: PyTorch's memory begins at a multiple of these


@dataclass(frozen=True)
class _State:
    """What is counted; a field that another version of this file knew is passed over."""

    step: int
    # older files call it applied
    optimizer_steps: Annotated[int, Field(validation_alias=AliasChoices("optimizer_steps", "applied"))]
    refusals: int
    learned: Learned | None
    kl_coefficient: float | None = None
    passes: Passes | None = None  # by which it updates
    given: tuple[int | str | None, ...] | None = None  # the options of passes then, and the kind of device


_STATE = TypeAdapter(_State)


@dataclass(frozen=True)
class OptimizerStep:
    """What came of one optimizer step."""

    loss: float
    norm: float  # of the gradient before clipping
    sums: dict[str, float]  # of metrics, over its tokens
    tokens: int
    refused: str = ""  # what of it was not finite: weights and optimizer are as before
    said: str = ""  # of memory, for people


def loss_scale(dtype: torch.dtype, tokens: int) -> float:
    """The factor of a loss before the backward pass, by which its gradient is divided after it.

    In float16, whose smallest normal number is 6e-5, a token's share of the gradient would vanish: from a weight of
    1/tokens in the loss it is brought to about 2^-4, by a power of two, so that scaling itself rounds nothing
    (Micikevicius et al., arXiv 1710.03740, section 3.2). 1 in a type with the range of float32.
    """
    return 2.0 ** max(0, tokens.bit_length() - 5) if dtype == torch.float16 else 1.0


class Optimized(Generic[M]):
    """A model being trained. ``step`` is the version that it holds: how many updates have been made."""

    def __init__(self, policy: M, config: OptimizerConfig, *, step: int = 0) -> None:
        self.policy = policy
        self.config = config
        self.step = step
        self.optimizer_steps = 0  # that changed the weights
        self.refusals = 0  # non-finite updates in a row
        self.learned: Learned | None = None
        self.kl_coefficient: float | None = None  # as it was adapted so far; a policy's
        self.decay = 1.0  # share of the learning rate that the next update takes: see rl.learning.schedules
        self.parameters = [p for p in policy.model.parameters() if p.requires_grad]
        with room_for("the model", policy.device, less_memory(policy)):
            _align(policy.model.parameters())
        self.optimizers = build_optimizers(policy, config)
        self.memory = OptimizedMemory(policy, self.optimizers)
        self.accumulation = Accumulation(policy, config)

    @property
    def standing(self) -> int:
        """Bytes that the next update takes and keeps."""
        return standing_bytes(self.parameters, self.optimizers)

    def optimizer_step(self, scale: float = 1.0, *, loss_scale: float = 1.0) -> float:
        """Divide the gradient by ``loss_scale``, clip it, take one optimizer step at ``scale`` times the learning rate,
        and return the norm before clipping.

        A norm that is not finite leaves weights and optimizer as they were.
        """
        if loss_scale != 1:
            torch._foreach_mul_([p.grad for p in self.parameters if p.grad is not None], 1 / loss_scale)
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.config.clip_norm))
        if math.isfinite(norm):
            rise = scale * self.decay * min(1.0, (self.optimizer_steps + 1) / max(1, self.config.warmup_steps))
            for optimizer in self.optimizers:
                for group in optimizer.param_groups:
                    group["lr"] = self.config.rate * rise
                wide = self.config.name == "adamw" and self.config.state == "float32"
                helps = (*(("optimizer.state 8bit",) if wide else ()), *less_memory(self.policy))
                with room_for(f"the state of {self.config.name}", self.policy.device, helps):
                    optimizer.step()
            # a fused AdamW and bitsandbytes write past autograd's counters, by which sampling sees new weights
            torch.autograd.graph.increment_version(self.parameters)
            self.optimizer_steps += 1
        self.policy.model.zero_grad(set_to_none=True)
        return norm

    def scaled_step(
        self, backward: Callable[[float], tuple[dict[str, float], str]], tokens: int, rate: float = 1.0
    ) -> OptimizerStep:
        """One optimizer step, at ``rate`` times the learning rate, by what ``backward(scale)`` adds to the gradient:
        that of a mean over so many tokens, by ``scale``. It returns the loss, as ``loss``, and metrics, as sums over
        tokens, and what is to be said of memory.

        What is not finite is refused; a scaled gradient that is not is made anew with a smaller scale first.
        """
        scale = loss_scale(self.policy.dtype, tokens)
        while True:
            sums, said = backward(scale)
            total = sums.pop("loss")
            # what is not finite anywhere in the loss is not finite in the norm, which `optimizer_step` refuses
            norm = self.optimizer_step(rate, loss_scale=scale) if math.isfinite(total) else math.nan
            self.policy.model.zero_grad(set_to_none=True)
            if math.isfinite(norm) or not math.isfinite(total) or scale == 1:
                break
            scale = max(1.0, scale / 16)  # the scaled gradient may be what overflowed
        refused = "" if math.isfinite(norm) else "gradient" if math.isfinite(total) else "loss"
        return OptimizerStep(total, norm, sums, tokens, refused, said)

    # -- what survives the process

    @property
    def _given(self) -> tuple[int | str | None, ...]:
        return self.config.microbatch_tokens, self.config.checkpointing, self.policy.device.type

    def optimizer_of(self, parameter: Tensor) -> torch.optim.Optimizer:
        """The optimizer that updates this parameter."""
        return next(
            optimizer
            for optimizer in self.optimizers
            if any(parameter is one for group in optimizer.param_groups for one in group["params"])
        )

    def save(self, folder: Path) -> None:
        """Write what a new process needs to go on: weights, optimizer, random state, counters."""
        save_policy(self.policy, folder)
        tensors = {"rng": torch.get_rng_state()}
        for index, parameter in enumerate(self.parameters):
            for name, value in state_tensors(self.optimizer_of(parameter), parameter).items():
                tensors[f"{index}.{name}"] = value
        save_file(tensors, folder / "optimizer.safetensors")
        state = _State(
            self.step,
            self.optimizer_steps,
            self.refusals,
            self.learned,
            self.kl_coefficient,
            self.accumulation.passes,
            self._given,
        )
        (folder / "learner.json").write_text(json.dumps(asdict(state)))

    def restore(self, folder: Path) -> None:
        """Take over what :meth:`save` wrote, bit for bit."""
        self.policy.load_weights(read_weights(folder))
        tensors = load_file(folder / "optimizer.safetensors")
        torch.set_rng_state(tensors.pop("rng"))
        for optimizer in self.optimizers:
            optimizer.state.clear()
        for key, value in tensors.items():
            index, name = key.split(".", 1)
            parameter = self.parameters[int(index)]
            restore_state(self.optimizer_of(parameter), parameter, name, value)
        state = _STATE.validate_json((folder / "learner.json").read_bytes())
        self.step, self.optimizer_steps = state.step, state.optimizer_steps
        self.refusals, self.learned, self.kl_coefficient = state.refusals, state.learned, state.kl_coefficient
        self.accumulation.passes = state.passes if state.given == self._given else None


def _align(parameters: Iterable[Tensor]) -> None:
    """Move those that lie where a file has them to where memory is allotted: where a matrix begins decides the last
    bits of a processor's product of a single row, and a resume reads it from another place of another file."""
    for parameter in parameters:
        if parameter.device.type == "cpu" and parameter.data_ptr() % ALIGNMENT:
            parameter.data = parameter.data.clone()
