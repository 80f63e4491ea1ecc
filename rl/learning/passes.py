"""The forward passes of an update: as large as the device's memory allows."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from rl.config import OptimizerConfig
from rl.learning.packing import Packed, balance, microbatches, pack, rows_of
from rl.model.memory import (
    NoRoomError,
    cast_bytes,
    checkpointed_layers,
    is_out_of_memory,
    kept_bytes,
    release,
    spare_bytes,
)
from rl.model.policy import Policy
from rl.model.scores import CHUNK
from rl.records import Rollouts

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
        self.passes: Passes | None = None  # chosen at the first update
        self.shrunk: Passes | None = None  # to these, because memory ran out
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
            self.shrunk = self.passes.smaller(self.config, longest)
            if self.shrunk is None:
                raise NoRoomError(
                    f"one sequence of {longest:,} tokens in a forward pass does not fit into the memory of "
                    f"{self._policy.device}: give optimizer.checkpointing on, a smaller sampling.max_tokens or a "
                    "smaller policy.model"
                )
            self.passes = self.shrunk
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
        """Choose the passes, once, by what is free and what the shortest row needs; says so if memory limits them."""
        if self.passes is not None:
            return ""
        rows = rows_of(rollouts, groups, balance=self._balance)
        shortest = pack(rollouts, [min(rows, key=lambda row: row.length(rollouts))], self._policy.device)
        wanted = Passes.wanted(self._policy, self.config)
        self.passes = self.shrunk or _fitting(self._policy, self.config, wanted, shortest, standing)
        return "" if self.passes == wanted else f"memory allows {self.passes}"


def _fitting(policy: Policy, config: OptimizerConfig, wanted: Passes, row: Packed, standing: int) -> Passes:
    """The passes that fit into the memory that is free now, measured with one row. A number of positions that is given
    is taken."""
    head = 8 * min(CHUNK, wanted.positions * policy.text.vocab_size)
    room = spare_bytes(policy.device) - standing - cast_bytes(policy) - head
    kept = _kept_by_position(policy, row)
    checkpointing = wanted.checkpointing or (config.checkpointing == "auto" and wanted.positions * kept > room)
    if checkpointing:  # what goes into each layer, and one layer whole
        layers = max(1, len(checkpointed_layers(policy.model)))
        kept = kept / layers + layers * policy.text.hidden_size * policy.dtype.itemsize
    fitting = wanted.positions if config.microbatch_tokens else max(FEW, int(room / max(1.0, kept)))
    return Passes(min(wanted.positions, fitting), checkpointing)


def _kept_by_position(policy: Policy, row: Packed) -> float:
    """Bytes that a pass keeps of a position for the backward pass; infinite where there is no room for this row."""
    try:
        kept = kept_bytes(policy, mask=row.mask, input_ids=row.tokens, position_ids=row.positions)
        return kept / row.tokens.numel()
    except RuntimeError as error:
        if not is_out_of_memory(error):
            raise
    release(policy.device)
    return math.inf
