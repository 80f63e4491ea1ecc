"""What fits on a device: training of a model by each method, and generation beside it, from its configuration alone.
Nothing is loaded: the model is made on PyTorch's meta device, whose tensors have a shape and no memory."""

import bisect
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from rl.learning.optimizer_config import STATE
from rl.lora_config import LoraConfig
from rl.model.activations import checkpointed_bytes, chunk_within, kept_by_position, kept_of_row, passing_bytes
from rl.model.head import attention_of
from rl.model.lora import add_adapters
from rl.model.memory import free_bytes, spare_bytes
from rl.model.narrow import compute_in
from rl.model.policy import Policy, choose_device, choose_dtype, dtype_name
from rl.model.skeleton import META, skeleton
from rl.model.tiny import build_tokenizer
from rl.sampling.backend import position_bytes
from rl.sampling.slots import DRAWN_BYTES

PROBE = 64  # positions of the pass that tells what one keeps; of longer ones attention on the meta device keeps more
USUAL = 1024  # positions of a sequence
LONGEST = 2**32  # positions of a sequence that are looked at
BESIDE = 4 + STATE["AdamW"]  # bytes that a trained parameter has beside itself: its gradient and two moments
RANK = 16  # of the adapters


@dataclass(frozen=True)
class Fit:
    """Training by one method, and generation beside it on the same device."""

    method: str  # the options that choose it
    trained: int  # parameters
    trainer_gb: float  # weights, gradients and optimizer state
    generator_gb: float  # weights
    longest: int  # positions of a sequence that an update has room for, with checkpointing; 0 where it does not fit
    at_once: int  # sequences that are generated at a time; 0 where it does not fit


@dataclass(frozen=True)
class Fits:
    """What a device has room for."""

    device: str
    free_gb: float
    dtype: str  # of the arithmetic
    parameters: int
    positions: int  # of the sequences that are generated
    methods: tuple[Fit, ...]


def fits(model: str, positions: int | None = None, *, rank: int = RANK, wanted: str = "auto") -> Fits:
    """What the device `wanted` has room for, of a hub id, a folder, or the tiny policy, if prompt and completion have
    so many positions; by default USUAL, or all that the model has.

    Raises:
        UnknownModelError: transformers has no such model.
        ValueError: the model has fewer positions.
    """
    device = choose_device(wanted)
    made = skeleton(model)
    parameters = made.num_parameters()
    policy = Policy(made, build_tokenizer(), META, torch.float32)
    if positions is None:
        positions = min(USUAL, policy.reach[0] if policy.reach else USUAL)
    policy.check_room(0, positions)
    dtype = choose_dtype("auto", device, lambda: parameters)
    bases = [dtype] if dtype == torch.bfloat16 else [dtype, torch.bfloat16]
    methods = [_fit(model, 0, dtype, dtype, positions, device)]
    methods += [_fit(model, rank, base, dtype, positions, device) for base in bases]
    return Fits(str(device), free_bytes(device) / 1e9, dtype_name(dtype), parameters, positions, tuple(methods))


def _fit(name: str, rank: int, base: torch.dtype, dtype: torch.dtype, positions: int, device: torch.device) -> Fit:
    words = build_tokenizer()  # of which nothing but its end token is asked
    sampled = Policy(skeleton(name).to(dtype), words, META, dtype)  # type: ignore[arg-type]
    generator = sum(parameter.nbytes for parameter in sampled.model.parameters())
    with FirstExpert():
        sequence = positions * position_bytes(sampled, device) + DRAWN_BYTES * sampled.text.vocab_size
    policy = Policy(skeleton(name), words, META, dtype)
    if rank:
        policy.model.to(base)  # type: ignore[arg-type]
        if base != dtype:
            compute_in(policy.model, dtype)
        add_adapters(policy.model, LoraConfig(rank=rank), torch.float32, dtype)
    trained = sum(parameter.numel() for parameter in policy.model.parameters() if parameter.requires_grad)
    trainer = sum(parameter.nbytes for parameter in policy.model.parameters()) + trained * BESIDE
    left = spare_bytes(device, generator + trainer, processes=2)
    room = left - passing_bytes(policy, positions, device, chunk_within(policy, positions, left))
    kept, growth = _kept_by_position(policy)
    shares = device.type == "cpu" and attention_of(policy.model) == "sdpa"  # a mask, all layers: see `shared_mask`

    def exceeds(length: int) -> bool:
        mask = dtype.itemsize * length**2 if shares else 0
        return length * checkpointed_bytes(policy, kept + growth * length) + mask > room

    longest = bisect.bisect_left(range(1, LONGEST + 1), True, key=exceeds)
    method = f"policy.lora {rank}" + f", policy.lora.base {dtype_name(base)}" * (base != dtype)
    return Fit(
        method if rank else "full",
        trained,
        trainer / 1e9,
        generator / 1e9,
        min(longest, policy.reach[0] if policy.reach else longest),
        max(0, int(left / sequence)),
    )


def _kept_by_position(policy: Policy) -> tuple[float, float]:
    """As `kept_by_position`; of other attention than transformers' own, which keeps its weights, nothing grows."""
    # in the type itself: there is no autocast on the meta device
    plain = Policy(policy.model.to(policy.dtype), policy.tokenizer, META, torch.float32)  # type: ignore[arg-type]
    with FirstExpert():
        if attention_of(policy.model) == "eager":
            return kept_by_position(plain, PROBE)
        return kept_of_row(plain, PROBE), 0.0


class FirstExpert(TorchFunctionMode):
    """On the meta device, which knows no routes, every position takes the first expert's matrices: what a pass keeps is
    of the same shapes. Grouped products are for CUDA's types alone there."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        match func:
            case torch._grouped_mm:
                rows, matrices = args
                return rows @ matrices[0]
            case Tensor.tolist:  # how many rows each expert has
                return [0] * len(args[0])
            case Tensor.split if isinstance(args[1], list):
                return args[0], *(args[0][:0] for _ in args[1][1:])
        return func(*args, **(kwargs or {}))
