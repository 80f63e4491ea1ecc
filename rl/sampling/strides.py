"""Steps of a fixed shape, several at a time: what a GPU replays as one graph, without being told each kernel again.

A stride gives each row up to STRIDE tokens before anybody looks which rows are over, so that nobody waits for the
device at each token. Rows and prompts are counted in powers of two, positions more finely: those that
nobody uses are computed and dropped, as is what a row would draw behind its end. Kernels that read only the keys that
are seen take all positions in one shape.

Legend: B rows of a shape, M places (prompts), C rows of the place with most.
"""

import logging
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from rl.model.attention import Grid, columns_of, laid_out
from rl.model.policy import Policy
from rl.sampling.backend import Backend
from rl.sampling.cache import DecodePass, decoded
from rl.sampling.decoding import chosen, scaled_logits
from rl.sampling.rows import Rows

if TYPE_CHECKING:
    from torch.cuda import _POOL_HANDLE
from rl.sampling.scheduling import Scheduler

STRIDE = 8  # tokens of a row between two looks
FEWEST = 64  # own positions: shapes of fewer would save nothing
WAITING = {torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape}

logger = logging.getLogger(__name__)


class Shape(NamedTuple):
    """What a step is compiled for."""

    rows: int  # B
    places: int  # M
    columns: int  # C
    own: int  # positions of a row
    drawn: bool  # whether some are drawn
    greedy: bool  # whether some take the most likely token


class Watch(TorchDispatchMode):
    """Finds the first operation inside for which this thread waits for the device, or the device for this thread: none
    can be part of a graph."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.found = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        places = {each.device for each in tree_leaves((args, made)) if isinstance(each, Tensor) and each.ndim}
        if len(places) > 1 or not WAITING.isdisjoint(func.tags):
            self.found = self.found or str(func)
        return made


class Program:
    """The step of one shape: on CUDA a graph, captured the second time; elsewhere the calls themselves."""

    def __init__(self, shape: Shape, device: torch.device) -> None:
        self.shape = shape
        self.points = torch.zeros(shape.rows, dtype=torch.int64, device=device)
        self.rows = torch.zeros(shape.places * shape.columns, dtype=torch.int64, device=device)
        self.grid = Grid(shape.places, shape.columns, self.rows, self.points)
        self.waits = ""  # for what, if it can be no graph
        self._runs = 0
        self._graph: torch.cuda.CUDAGraph | None = None

    def run(self, step: Callable[[Shape, Grid], None], pool: "_POOL_HANDLE | None", *, watched: bool = False) -> None:
        """One step; as a graph, with memory of the pool, if there is one. ``watched``: it is known not to wait."""
        self._runs += 1
        if pool is None or self.waits:
            step(self.shape, self.grid)
        elif self._runs == 1:  # libraries take what they need
            with nullcontext() if watched else Watch() as watch:
                step(self.shape, self.grid)
            self.waits = watch.found if watch else ""
        else:
            if self._graph is None:
                self._graph = self._captured(step, pool)
            self._graph.replay()

    def _captured(self, step: Callable[[Shape, Grid], None], pool: "_POOL_HANDLE") -> torch.cuda.CUDAGraph:
        graph = torch.cuda.CUDAGraph()
        # the stream is this one again even if the end of the capture fails; other threads may use the device meanwhile
        with (
            torch.cuda.stream(torch.cuda.current_stream()),
            torch.cuda.graph(graph, pool=pool, capture_error_mode="thread_local"),
        ):
            step(self.shape, self.grid)
        return graph


class Strides:
    """Of one engine's rows, whose tensors stay where they are."""

    def __init__(self, policy: Policy, backend: Backend, rows: Rows, temperature: float, ends: Tensor) -> None:
        self._policy, self._backend, self._rows = policy, backend, rows
        self._temperature, self._ends = temperature, ends
        count, self._own = rows.tokens.shape[0], rows.tokens.shape[1]
        self._limits = torch.zeros(count, dtype=torch.int64, device=policy.device)
        self._ended = torch.zeros(count, dtype=torch.bool, device=policy.device)
        self._greedy = torch.zeros(count, dtype=torch.bool, device=policy.device)
        self._programs: dict[Shape, Program] = {}
        self._watched: set[tuple[bool, bool]] = set()  # whether some are drawn, and whether some are greedy
        # of all programs: nothing that one makes is needed by the next
        self._pool = torch.cuda.graph_pool_handle() if backend.graphs else None

    def forget(self) -> None:
        """The weights are others, perhaps elsewhere."""
        self._programs.clear()

    def draw(self, schedule: Scheduler, most: int = STRIDE) -> tuple[list[int], list[bool]]:
        """Draw up to `most` tokens of each row that is not over by then. Counts of all rows by then, and which of them
        have reached an end token: for `Rows.settle`."""
        rows, draws = self._rows, schedule.rows
        steps = min(most, max(draw.limit - count for draw, count in zip(draws, rows.counts, strict=True)))
        program = self._program(schedule, steps)
        at_points, points = laid_out(schedule.place_of, program.shape.places, program.shape.columns)
        _set(program.rows, at_points)
        _set(program.points, points)
        _set(self._limits.zero_(), [draw.limit for draw in draws])
        _set(self._greedy, [draw.noise is None for draw in draws])
        self._ended.zero_()
        for _ in range(steps):
            self._run(program)
        counts, ended = torch.stack([rows.drawn, self._ended.long()])[:, : len(draws)].tolist()
        return counts, [bool(one) for one in ended]

    def _program(self, schedule: Scheduler, steps: int) -> Program:
        rows, draws = self._rows, schedule.rows
        positions = max(rows.counts) + steps
        room = self._own
        if not rows.cache.share:
            positions, room = positions + max(rows.lengths), rows.cache.rows.positions
        shape = Shape(
            _rounded(len(draws), len(self._limits)),
            _rounded(len(schedule.places), len(rows.prompt_lengths)),
            _rounded(columns_of(schedule.place_of), len(self._limits)),
            room if rows.reads_what_is_seen else _rounded(max(FEWEST, positions), room, finely=True),
            any(draw.noise is not None for draw in draws),
            any(draw.noise is None for draw in draws),
        )
        if shape not in self._programs:
            self._programs[shape] = Program(shape, self._policy.device)
        return self._programs[shape]

    def _run(self, program: Program) -> None:
        kind = program.shape.drawn, program.shape.greedy
        program.run(self._step, self._pool, watched=kind in self._watched)
        self._watched.add(kind)
        if program.waits and self._pool is not None:
            logger.warning("decoding is no graph here, which takes longer: this model waits for %s", program.waits)
            self._pool, self._backend.graphs = None, False

    def _step(self, shape: Shape, grid: Grid) -> None:
        """A token of each row, everything where it was: no shape and no branch here follows from what is drawn."""
        rows, cache = self._rows, self._rows.cache
        B = shape.rows  # noqa: N806
        drawn, ended, logprobs = rows.drawn[:B], self._ended[:B], rows.logprobs[:B]
        goes = (drawn < self._limits[:B]) & ~ended
        at = (drawn - 1).clamp_(min=0)  # of rows that nobody uses
        positions = rows.behind[:B] + at
        step = DecodePass(
            cache,
            at if cache.share else positions,
            shape.own,
            grid,
            rows.prompt_lengths[: shape.places],
            cache.prompts_kept.positions,
        )
        ids = rows.tokens[:B].gather(1, at[:, None])
        hidden = decoded(self._policy, step, ids, positions, rows.lean)
        now = drawn.clamp(max=self._own - 1)[:, None]
        greedy = self._greedy[:B] if shape.drawn and shape.greedy else shape.greedy
        token, logprob = chosen(
            scaled_logits(self._policy, hidden, self._temperature, rows.lean),
            greedy,
            rows.noise[:B].gather(1, now)[:, 0],
        )
        for kept, new in ((rows.tokens[:B], token), (logprobs, logprob)):
            kept.scatter_(1, now, torch.where(goes, new, kept.gather(1, now)[:, 0])[:, None])
        ended |= goes & (token[:, None] == self._ends).any(1)
        drawn += goes


def _rounded(count: int, most: int, *, finely: bool = False) -> int:
    """The next power of two, or three quarters of it, `most` at most."""
    power = 1 << (count - 1).bit_length()
    return min(most, 3 * power // 4 if finely and count <= 3 * power // 4 else power)


def _set(kept: Tensor, values: Sequence[int]) -> None:
    kept[: len(values)].copy_(torch.tensor(values, dtype=kept.dtype))
