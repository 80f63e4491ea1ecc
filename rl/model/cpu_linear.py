"""A small model's products on a processor with AVX2 or AVX-512: `cpu_linear.c`, compiled on the machine itself.

PyTorch's own lay a matrix out anew for each product, and leave what follows to passes of their own over the results.
`rl.model.lean.TorchLinear` is the same by PyTorch. In float32 alone.

Legend: B rows, H inputs, N outputs, I gates, P panels of C columns.
"""

import ctypes
import math
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812  # its usual name
from torch import Tensor

from rl.model.compiled import ADDRESS, NUMBER, bounds, compiled, in_parts

SOURCE = Path(__file__).with_suffix(".c")
WORK = 2**21  # products of two numbers of a thread, at least
PLAIN, ADDED, GATED = range(3)
APART = 1e-4  # that they may be from those in float64


def pays() -> bool:
    """Whether this processor is of a kind on which these products were measured to be faster than PyTorch's, which on
    others, as Apple's, use units that no compiler does."""
    return torch.backends.cpu.get_cpu_capability() in ("AVX2", "AVX512")


class CpuLinear:
    """Products with weights [N, H] that were laid out as panels [P, H, C]: copies."""

    def __init__(self) -> None:
        """Raises what `compiled` raises, and ValueError where what was compiled makes other products."""
        library = compiled(SOURCE)
        self._columns = ctypes.c_int64.in_dll(library, "columns").value
        self._product = library.product
        self._product.argtypes = (*(NUMBER,) * 6, *(ADDRESS,) * 4)
        draws = torch.Generator().manual_seed(0)
        states, weights, up = (torch.randn(rows, 24, generator=draws, dtype=torch.float32) for rows in (29, 40, 40))
        bias = up[:, 0]
        exact, of_up = states.double() @ weights.double().T, states.double() @ up.double().T
        for found, expected in (
            (self.projections([weights], [bias])(states)[0], exact + bias),
            (self.adds(weights)(states[:, :1].repeat(1, 40), states), states[:, :1] + exact),
            (self.gates(weights, up)(states), F.silu(exact) * of_up),
        ):
            if not ((found - expected).abs() < APART * (1 + expected.abs())).all():
                raise ValueError("what was compiled makes other products")

    def projections(
        self, weights: Sequence[Tensor], biases: Sequence[Tensor] | None
    ) -> Callable[[Tensor], Sequence[Tensor]]:
        """See `rl.model.lean.Linear`."""
        panels, widths = self._panels(torch.cat(tuple(weights))), [len(each) for each in weights]
        bias = None if biases is None else torch.cat(tuple(biases))

        def projected(states: Tensor) -> Sequence[Tensor]:
            made = states.new_empty(len(states), sum(widths))
            return self._multiply(PLAIN, states, panels, bias, made).split_with_sizes(widths, -1)

        return projected

    def gates(self, gates: Tensor, up: Tensor) -> Callable[[Tensor], Tensor]:
        """See `rl.model.lean.Linear`."""
        half = self._columns // 2
        blocks = [F.pad(each, (0, 0, 0, -len(each) % half)).reshape(-1, half, each.shape[1]) for each in (gates, up)]
        panels, width = self._panels(torch.stack(blocks, 1).flatten(0, 2)), len(gates)

        def gated(states: Tensor) -> Tensor:
            return self._multiply(GATED, states, panels, None, states.new_empty(len(states), width))

        return gated

    def adds(self, weight: Tensor) -> Callable[[Tensor, Tensor], Tensor]:
        """See `rl.model.lean.Linear`; it adds in place."""
        panels = self._panels(weight)
        return lambda hidden, states: self._multiply(ADDED, states, panels, None, hidden.contiguous())

    def _multiply(self, how: int, states: Tensor, panels: Tensor, bias: Tensor | None, out: Tensor) -> Tensor:
        states = states.contiguous()
        assert states.dtype == panels.dtype == out.dtype == torch.float32, "they are for float32 alone"
        (rows, inputs), outputs = states.shape, out.shape[1]
        assert inputs == panels.shape[1]
        addresses = states.data_ptr(), panels.data_ptr(), None if bias is None else bias.data_ptr(), out.data_ptr()
        given = (rows, inputs, outputs, how, *addresses)
        least = math.ceil(WORK / max(1, rows * panels[0].numel()))
        in_parts(self._product, bounds(len(panels), least), given, (states, panels, bias, out))
        return out

    def _panels(self, weight: Tensor) -> Tensor:
        """[P, H, C] of [N, H], zeros beyond N."""
        padded = F.pad(weight, (0, 0, 0, -len(weight) % self._columns))
        return padded.reshape(-1, self._columns, weight.shape[1]).transpose(1, 2).contiguous()
