"""Optimizers of a policy's parameters."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, assert_never

import torch
from torch import Tensor, nn

from rl.learning.muon import Muon
from rl.learning.optimizer_config import STATE, OptimizerConfig
from rl.model.parking import ModelMemory
from rl.model.policy import Policy

EIGHT_BIT_FROM = 4096  # numbers in a tensor; bitsandbytes keeps the state of a smaller one in float32


def build_optimizers(policy: Policy, config: OptimizerConfig) -> list[torch.optim.Optimizer]:
    """AdamW for all parameters; or Muon, or AdamW with a state of 8 bits, for the hidden matrices and AdamW for
    embeddings, norms and head.

    Muon's step is scaled to the size of AdamW's, so one learning rate serves both (Moonlight, arXiv 2502.16982,
    section 2.2). The state of embeddings has to be exact (Dettmers et al., arXiv 2110.02861, section 2.3).
    """
    config.check_installed()
    parameters = [p for p in policy.model.parameters() if p.requires_grad]
    # of positions too, which some models learn
    tables = [module for module in policy.model.modules() if isinstance(module, nn.Embedding)]
    ends = (*tables, policy.model.get_output_embeddings())  # type: ignore[no-untyped-call]
    apart = {id(p) for module in ends for p in module.parameters()}
    match config.name:
        case "muon":
            own = True
        case "adamw":
            own = config.state == "8bit"
        case other:
            assert_never(other)
    hidden = [p for p in parameters if own and p.ndim == 2 and id(p) not in apart]
    chosen = {id(p) for p in hidden}
    others = [p for p in parameters if id(p) not in chosen]
    decay = config.weight_decay
    optimizers: list[torch.optim.Optimizer] = []
    if others:
        optimizers.append(torch.optim.AdamW(others, lr=config.rate, betas=config.betas, weight_decay=decay, fused=True))
    if hidden:
        optimizers.append(_of_hidden(hidden, config))
    return optimizers


def _of_hidden(hidden: list[nn.Parameter], config: OptimizerConfig) -> torch.optim.Optimizer:
    decay = config.weight_decay
    if config.name == "muon":
        return Muon(hidden, lr=config.rate, weight_decay=decay)
    from bitsandbytes import optim

    made: Any = optim.AdamW8bit  # type: ignore[attr-defined]  # untyped
    found: torch.optim.Optimizer = made(
        hidden, lr=config.rate, betas=config.betas, weight_decay=decay, min_8bit_size=EIGHT_BIT_FROM
    )
    return found


def state_bytes(optimizer: torch.optim.Optimizer) -> int:
    """Bytes of the state that it makes at its first step, and keeps."""
    count: int = sum(p.numel() for group in optimizer.param_groups for p in group["params"])
    return STATE[type(optimizer).__name__] * count


def standing_bytes(parameters: Iterable[Tensor], optimizers: Iterable[torch.optim.Optimizer]) -> int:
    """Bytes that the next update takes and keeps: of gradients, and at the first one of the optimizers' state."""
    gradients = sum(p.numel() * p.element_size() for p in parameters if p.grad is None)
    return gradients + sum(state_bytes(optimizer) for optimizer in optimizers if not optimizer.state)


class OptimizedMemory(ModelMemory):
    """A model with the state of its optimizers; its size is that of the next update."""

    def __init__(self, policy: Policy, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        super().__init__(policy.model, policy.device)
        self._optimizers = optimizers
        self._parameters = [p for p in policy.model.parameters() if p.requires_grad]

    @property
    def nbytes(self) -> int:
        return super().nbytes + standing_bytes(self._parameters, self._optimizers)

    def _tensors(self) -> Iterator[Tensor]:
        yield from super()._tensors()
        for optimizer in self._optimizers:
            for state in list(optimizer.state.values()):  # an update may add to it meanwhile
                yield from (each for each in list(state.values()) if isinstance(each, Tensor))


def state_tensors(optimizer: torch.optim.Optimizer, parameter: Tensor) -> dict[str, Tensor]:
    """A parameter's state on the CPU, by name; `restore_state` takes it."""
    found = {name: torch.as_tensor(value) for name, value in optimizer.state.get(parameter, {}).items()}
    # what is not of the parameter's shape may be shared by parameters, as the 256 numbers that 8 bits stand for
    mine = {name: value if value.shape == parameter.shape else value.clone() for name, value in found.items()}
    return {name: value.detach().cpu().contiguous() for name, value in mine.items()}


def restore_state(optimizer: torch.optim.Optimizer, parameter: Tensor, name: str, value: Tensor) -> None:
    """Take over one of `state_tensors`."""
    counts = value.dtype == torch.int64  # bitsandbytes counts its steps in a plain number
    # a step counter stays where a fused AdamW keeps it: beside its parameter
    optimizer.state[parameter][name] = int(value) if counts else value.to(parameter.device)
