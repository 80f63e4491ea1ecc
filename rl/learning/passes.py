"""The forward passes of an update: as large as the device's memory allows."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from rl.learning.packing import Packed, balance, microbatches, pack, rows_of
from rl.model.memory import (
    NoRoomError,
    cast_bytes,
    checkpointed_bytes,
    copy_bytes,
    is_out_of_memory,
    kept_bytes,
    release,
    spare_bytes,
)
from rl.model.policy import Policy
from rl.model.scores import CHUNK
from rl.optimizer_config import OptimizerConfig
from rl.records import Rollouts

MEASURED = 128  # positions at most of a row that a pass is measured with
LEAST = 1e9  # bytes that a pass may keep beside adapters, however small the model is
FEW = 512  # positions: passes of fewer cost more than they save, unless there is no other way


@dataclass(frozen=True)
class Passes:
    """How an update is divided into forward passes."""

    positions: int  # in each at most; a longer sequence goes alone
    checkpointing: bool

    @classmethod
    def wanted(cls, policy: Policy, config: OptimizerConfig) -> "Passes":
        """Those that are taken where memory allows; on a CPU short ones, because others would only leave its caches."""
        few = policy.device.type == "cpu"
        return cls(config.microbatch_tokens or (1024 if few else 16384), config.checkpointing == "on")

    def smaller(self, config: OptimizerConfig, longest: int) -> "Passes | None":
        """Passes that take less memory, None where nothing does; a sequence has `longest` positions at most."""
        may_checkpoint = config.checkpointing == "auto" and not self.checkpointing
        least = max(longest, FEW) if may_checkpoint else longest
        if self.positions > least:
            return Passes(max(least, self.positions // 2), self.checkpointing)
        return Passes(self.positions, True) if may_checkpoint else None

    def __str__(self) -> str:
        return f"forward passes of {self.positions:,} positions{', with checkpointing' if self.checkpointing else ''}"


class Accumulation:
    """Adds up the gradient of an update, one forward pass after the other."""

    def __init__(self, policy: Policy, config: OptimizerConfig) -> None:
        self.config = config
        self.passes: Passes | None = None  # chosen at the first update: sums of other passes are rounded otherwise
        self._policy = policy
        self._balance = balance(policy)

    def add(
        self,
        rollouts: Rollouts,
        groups: Sequence[int],
        work: Callable[[Packed, bool], Mapping[str, float]],
        standing: int = 0,
    ) -> tuple[dict[str, float], str]:
        """Call `work`, which adds to the gradient, with each pass of these groups' completions, and with whether it is
        to checkpoint layers. Returns the sums of what it returns, and what is to be said of memory.

        Out of memory, it begins anew with smaller passes, which stay: the gradient was zero before. `standing` bytes
        are still to be taken by what stays, gradients and the optimizer's state. Raises NoRoomError.
        """
        said = self._choose(rollouts, groups, standing)
        while True:
            assert self.passes is not None
            try:
                return self._sums(rollouts, groups, work, self.passes), said
            except RuntimeError as error:
                if not is_out_of_memory(error):
                    raise
            # here, where no error holds any more what the pass had made
            self._policy.model.zero_grad(set_to_none=True)
            release(self._policy.device)
            longest = max(row.length(rollouts) for row in rows_of(rollouts, groups, positions=0))
            smaller = self.passes.smaller(self.config, longest)
            if smaller is None:
                helps = "" if self.passes.checkpointing else "optimizer.checkpointing on, "
                raise NoRoomError(
                    f"one sequence of {longest:,} tokens in a forward pass does not fit into the memory of "
                    f"{self._policy.device}: give {helps}a smaller sampling.max_tokens or a smaller policy.model"
                )
            self.passes = smaller
            said = f"out of memory; {self.passes} from now on"

    def _sums(
        self,
        rollouts: Rollouts,
        groups: Sequence[int],
        work: Callable[[Packed, bool], Mapping[str, float]],
        passes: Passes,
    ) -> dict[str, float]:
        sums = dict[str, float]()
        rows = rows_of(rollouts, groups, balance=self._balance, positions=passes.positions)
        for part in microbatches(rollouts, rows, passes.positions):
            for name, value in work(pack(rollouts, part, self._policy.device), passes.checkpointing).items():
                sums[name] = sums.get(name, 0.0) + value
        return sums

    def _choose(self, rollouts: Rollouts, groups: Sequence[int], standing: int) -> str:
        """Choose the passes, once, by what is free and what the longest row needs; says so if memory limits them."""
        if self.passes is not None:
            return ""
        wanted = Passes.wanted(self._policy, self.config)
        rows = rows_of(rollouts, groups, balance=self._balance, positions=wanted.positions)
        longest = max(row.length(rollouts) for row in rows)
        self.passes = _fitting(self._policy, self.config, wanted, longest, standing)
        why = "memory allows" if self._policy.base is None else "to save memory,"
        return "" if self.passes == wanted else f"{why} {self.passes}"


def _fitting(policy: Policy, config: OptimizerConfig, wanted: Passes, longest: int, standing: int) -> Passes:
    """The passes that fit into the memory that is free now, if rows have `longest` positions at most. A number of
    positions that is given is taken."""
    head = 8 * min(CHUNK, wanted.positions * policy.text.vocab_size)
    room = spare_bytes(policy.device, standing) - cast_bytes(policy) - copy_bytes(policy) - head
    if policy.base is not None and policy.device.type != "cuda":  # else a pass takes several times the frozen weights
        room = min(room, max(LEAST, sum(p.numel() * p.element_size() for p in policy.model.parameters())))
    kept = _kept_by_position(policy, longest)
    checkpointing = wanted.checkpointing or (
        config.checkpointing == "auto" and max(wanted.positions, longest) * kept > room
    )
    if checkpointing:
        kept = checkpointed_bytes(policy, kept)
    fitting = wanted.positions if config.microbatch_tokens else max(FEW, int(room / max(1.0, kept)))
    return Passes(min(wanted.positions, fitting), checkpointing)


def _kept_by_position(policy: Policy, length: int) -> float:
    """Bytes that a pass keeps of a position of a row of that length for the backward pass; infinite where there is no
    room for what is measured.

    Attention may keep what grows with the square of a length: transformers' own its weights, PyTorch's a mask. So short
    rows of two lengths are measured, and what is kept of a position taken to grow as it does between them.
    """
    measured = min(length, MEASURED)
    half = measured // 2
    try:
        at_half, kept = (_kept(policy, each) / each for each in (half, measured))
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    else:
        return kept + max(0.0, kept - at_half) / (measured - half) * (length - measured)
    release(policy.device)
    return math.inf


def _kept(policy: Policy, length: int) -> int:
    """Bytes that are kept of a row."""
    at = torch.arange(length, device=policy.device)
    return kept_bytes(
        policy, mask=(at[:, None] >= at)[None, None], input_ids=torch.zeros_like(at)[None], position_ids=at[None]
    )
