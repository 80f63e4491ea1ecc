"""The forward passes of an update: as large as the device's memory allows."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from rl.learning.optimizer_config import OptimizerConfig
from rl.learning.packing import Packed, Row, balance, microbatches, pack, rows_of
from rl.model.activations import checkpointed_bytes, chunk_within, kept_by_position, passing_bytes
from rl.model.blocks import WIDTH, block_refusal
from rl.model.head import shared_mask
from rl.model.memory import NoRoomError, is_out_of_memory, less_memory, one_of, release, room_for, spare_bytes
from rl.model.policy import LARGE, Policy
from rl.model.scores import ROWS, fast_chunk
from rl.model.tolerances import needs_no_mask
from rl.records import Rollouts

PROBED = 128  # positions at most of a row that a pass is measured with
BESIDE_ADAPTERS = 1e9  # bytes that a pass may keep beside adapters, however small the model is
LONG = 1024  # positions of a sequence: for shorter ones, or a small model, blocks save less than their kernel takes
FEW = 512  # positions: passes of fewer cost more than they save, unless there is no other way


@dataclass(frozen=True)
class Passes:
    """How an update is divided into forward passes."""

    positions: int  # in each at most; a longer sequence goes alone
    checkpointing: bool
    chunk: int | None = None  # tokens of a pass that may have logits at once; None: as many as are fast

    @classmethod
    def wanted(cls, policy: Policy, config: OptimizerConfig) -> "Passes":
        """Those that are taken where memory allows; on a CPU short ones, because others would only leave its caches."""
        few = policy.device.type == "cpu"
        return cls(config.microbatch_tokens or (1024 if few else 16384), config.checkpointing == "on")

    def smaller(self, config: OptimizerConfig, longest: int, outputs: int) -> "Passes | None":
        """Passes that take less memory, None where nothing does; a sequence has `longest` positions at most, and a
        token so many logits."""
        may_checkpoint = config.checkpointing == "auto" and not self.checkpointing
        least = max(longest, FEW) if may_checkpoint else longest
        if self.positions > least:
            return replace(self, positions=max(least, self.positions // 2))
        if may_checkpoint:
            return replace(self, checkpointing=True)
        chunk = min(self.positions, self.chunk or fast_chunk(outputs))
        return replace(self, chunk=max(ROWS, chunk // 2)) if chunk > ROWS and outputs > 1 else None

    def __str__(self) -> str:
        checkpointing = ", with checkpointing" if self.checkpointing else ""
        chunk = "" if self.chunk is None else f", logits of {self.chunk} tokens at once"
        return f"forward passes of {self.positions:,} positions{checkpointing}{chunk}"


class Accumulation:
    """Adds up the gradient of an update, one forward pass after the other."""

    def __init__(self, policy: Policy, config: OptimizerConfig) -> None:
        self.config = config
        self.passes: Passes | None = None  # chosen at the first update: sums of other passes are rounded otherwise
        self.blocks: bool | None = None  # whether attention may be computed in blocks, once that is known
        self._policy = policy
        self._causal: bool | None = None  # whether rows of one completion need no mask, once that is known
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
        longest = max(len(rollouts.prompts[group]) + int(rollouts.lengths[group].max()) for group in groups)
        blocks, why = self._choose_attention(longest)
        said = "; ".join(filter(None, (why, self._choose(rollouts, groups, standing, blocks=blocks))))
        while True:
            assert self.passes is not None
            try:
                return self._sums(rollouts, groups, work, self.passes, blocks=blocks), said
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            # here, where no error holds any more what the pass had made
            self._policy.model.zero_grad(set_to_none=True)
            release(self._policy.device)
            smaller = self.passes.smaller(self.config, longest, self._policy.outputs)
            if smaller is None:
                helps = [] if self.passes.checkpointing else ["optimizer.checkpointing on"]
                others = one_of([*less_memory(self._policy), "a smaller policy.model"])
                raise NoRoomError(
                    f"one sequence of {longest:,} tokens in a forward pass does not fit into the memory of "
                    f"{self._policy.device}: give {one_of([*helps, 'a smaller sampling.max_tokens'])}, or to a new run "
                    f"{others}"
                )
            self.passes = smaller
            said = "; ".join(filter(None, (why, f"out of memory; {self.passes} from now on")))

    def _sums(
        self,
        rollouts: Rollouts,
        groups: Sequence[int],
        work: Callable[[Packed, bool], Mapping[str, float]],
        passes: Passes,
        *,
        blocks: bool,
    ) -> dict[str, float]:
        sums = dict[str, float]()
        rows = self._rows(rollouts, groups, passes, blocks=blocks)
        for part in microbatches(rollouts, rows, passes.positions, blocks=blocks):
            packed = replace(self._pack(rollouts, part, blocks=blocks), chunk=passes.chunk)
            for name, value in work(packed, passes.checkpointing).items():
                sums[name] = sums.get(name, 0.0) + value
        return sums

    def _pack(self, rollouts: Rollouts, part: Sequence[Row], *, blocks: bool) -> Packed:
        alone = not blocks and all(row.alone for row in part)
        if alone and self._causal is None:
            self._causal = needs_no_mask(self._policy)
        packed = pack(rollouts, part, self._policy.device, blocks=blocks, causal=alone and bool(self._causal))
        if not isinstance(packed.mask, torch.Tensor):
            return packed
        return replace(packed, mask=shared_mask(self._policy.model, packed.mask, self._policy.dtype))

    def _rows(self, rollouts: Rollouts, groups: Sequence[int], passes: Passes, *, blocks: bool) -> list[Row]:
        if not blocks:
            return rows_of(rollouts, groups, balance=self._balance, positions=passes.positions)
        # nobody is attended to in vain
        return rows_of(rollouts, groups, positions=max(1, passes.positions // WIDTH) * WIDTH)

    def _choose_attention(self, longest: int) -> tuple[bool, str]:
        """Whether to compute attention in blocks, which is for CUDA, where a sequence is long: by the batch alone, so
        that the same one is computed alike after a resume, too. Says it once if blocks are refused."""
        if longest < LONG:
            return False, ""
        if self.blocks is not None:
            return self.blocks, ""
        if self._policy.device.type != "cuda" or self._policy.model.num_parameters() < LARGE:
            self.blocks = False
            return False, ""
        with room_for("a forward pass", self._policy.device):
            why = block_refusal(self._policy)
        self.blocks = not why
        return self.blocks, f"attention by masks of whole rows: {why}" if why else ""

    def _choose(self, rollouts: Rollouts, groups: Sequence[int], standing: int, *, blocks: bool) -> str:
        """Choose the passes, once, by what is free and what the longest row needs; says so if memory limits them."""
        if self.passes is not None:
            return ""
        wanted = Passes.wanted(self._policy, self.config)
        longest = max(row.length(rollouts) for row in self._rows(rollouts, groups, wanted, blocks=blocks))
        self.passes = _fitting(self._policy, self.config, wanted, longest, standing, blocks=blocks)
        why = "memory allows" if self._policy.base is None else "to save memory,"
        return "" if self.passes == wanted else f"{why} {self.passes}"


def _fitting(
    policy: Policy, config: OptimizerConfig, wanted: Passes, longest: int, standing: int, *, blocks: bool = False
) -> Passes:
    """The passes that fit into the memory that is free now, if rows have `longest` positions at most. A number of
    positions that is given is taken."""
    spare = spare_bytes(policy.device, standing)
    chunk = chunk_within(policy, wanted.positions, spare)
    room = spare - passing_bytes(policy, wanted.positions, chunk=chunk)
    if policy.base is not None and policy.device.type != "cuda":  # else a pass takes several times the frozen weights
        room = min(room, max(BESIDE_ADAPTERS, sum(p.numel() * p.element_size() for p in policy.model.parameters())))
    kept = _kept_at(policy, longest, blocks=blocks)
    checkpointing = wanted.checkpointing or (
        config.checkpointing == "auto" and max(wanted.positions, longest) * kept > room
    )
    if checkpointing:
        kept = checkpointed_bytes(policy, kept)
    fitting = wanted.positions if config.microbatch_tokens else max(FEW, int(room / max(1.0, kept)))
    return Passes(min(wanted.positions, fitting), checkpointing, chunk)


def _kept_at(policy: Policy, length: int, *, blocks: bool = False) -> float:
    """Bytes that a pass keeps of a position of a row of that length for the backward pass; infinite where there is no
    room for what is measured."""
    try:
        kept, growth = kept_by_position(policy, min(length, PROBED))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
    else:
        return kept if blocks else kept + growth * length  # no mask and no weights of L x L are kept of blocks
    release(policy.device)
    return math.inf
