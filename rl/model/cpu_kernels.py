"""Attention of a decoding step on a processor: `cpu_kernels.c`, compiled on the machine itself for a shape of heads.

`rl.model.attention.joint` is the same computation in tensors, which takes several times as long. In float32 alone.

Legend: B rows, K heads of keys, R query heads of each, D head size.
"""

import ctypes
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from rl.model.attention import Seen
from rl.model.compiled import ADDRESS, NUMBER, REAL, bounds, compiled, in_parts
from rl.model.lean import Linear, gated

SOURCE = Path(__file__).with_suffix(".c")
ROWS = 64  # of a thread, at least


class CpuKernels:
    """Of a D and an R; see `rl.model.kernels` for those of a GPU."""

    DTYPES: Sequence[torch.dtype] = (torch.float32,)
    TRIED: Sequence[int] = (1, 9)
    PREFILLS = True

    def __init__(self, size: int, share: int, linear: Linear | None = None) -> None:
        """`linear`: of a small model, see `rl.model.cpu_linear`. Raises what `compiled` raises."""
        library = compiled(SOURCE, SIZE=size, SHARE=share)
        self.linear = linear
        self._normalize = library.normalize
        self._normalize.argtypes = (NUMBER, NUMBER, ADDRESS, ADDRESS, REAL, ADDRESS)
        self._normalize.restype = None
        self._gate = library.gate
        self._gate.argtypes = (NUMBER, NUMBER, ADDRESS, ADDRESS)
        self._gate.restype = None
        self._attend = library.attend
        self._attend.argtypes = (
            *(NUMBER, NUMBER, NUMBER, ADDRESS, ADDRESS, ADDRESS, ADDRESS),
            *(ADDRESS, REAL, ADDRESS, ADDRESS, REAL),
            *(ADDRESS, ADDRESS, NUMBER, ADDRESS, ADDRESS),
            *(ADDRESS, ADDRESS, NUMBER, ADDRESS),
            *(ADDRESS, NUMBER, ADDRESS),
        )

    def attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        norms: Tensor | None,
        epsilon: float,
        cos: Tensor,
        sin: Tensor,
        scaling: float,
        shared: Seen,
        layer: int,
    ) -> Tensor:
        """[B, K * R * D] of one new token of each row, or of tokens that follow one another, whose keys and values are
        kept: arguments as of `rl.model.kernels.attend`. Raises what `in_parts` raises."""
        own, prompts = shared.kept(layer)
        assert {query.dtype, own[0].dtype, cos.dtype} == {torch.float32}, "they are for float32 alone"
        (_, K, positions, _), B = own[0].shape, len(query)  # noqa: N806
        found = query.new_empty(query.shape)
        cos, sin, points = cos.contiguous(), sin.contiguous(), shared.grid.points
        given = (
            *(K, query.data_ptr(), key.data_ptr(), value.data_ptr()),
            (ctypes.c_int64 * 3)(query.stride(0), key.stride(0), value.stride(0)),
            *(None if norms is None else norms.data_ptr(), epsilon, cos.data_ptr(), sin.data_ptr(), scaling),
            *(own[0].data_ptr(), own[1].data_ptr(), positions),
            *(None if shared.kept_in is None else shared.kept_in.data_ptr(), shared.at.data_ptr()),
            *(prompts[0].data_ptr(), prompts[1].data_ptr(), prompts[0].shape[2], shared.prompt_lengths.data_ptr()),
            *(None if points is None else points.data_ptr(), shared.grid.columns, found.data_ptr()),
        )
        held = (query, key, value, norms, cos, sin, *own, *prompts, shared.at, shared.kept_in, shared.prompt_lengths)
        assert all(each.is_contiguous() for each in (*own, *prompts))
        parts = bounds(B, ROWS) if shared.parts is None else shared.parts
        in_parts(self._attend, parts, given, (*held, points, found))
        return found

    def rms_norm(self, states: Tensor, shape: Sequence[int], weight: Tensor, epsilon: float) -> Tensor:
        """As `torch.nn.functional.rms_norm` of states [B, H], which takes six calls."""
        states, weight = states.contiguous(), weight.contiguous()
        found = torch.empty_like(states)
        self._normalize(len(states), shape[0], states.data_ptr(), weight.data_ptr(), epsilon, found.data_ptr())
        return found

    def gated(self, states: Tensor, up: Tensor | None = None) -> Tensor:
        """See `rl.model.lean.gated`."""
        if up is not None:
            return gated(states, up)
        states = states.contiguous()
        found = states.new_empty(len(states), states.shape[1] // 2)
        self._gate(*found.shape, states.data_ptr(), found.data_ptr())
        return found
