"""Muon on a CPU."""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


class Muon(torch.optim.Muon):
    """torch's, with its step scaled as AdamW's is, whose Newton-Schulz iterations are in float32 on a CPU: torch makes
    them in bfloat16, and most processors multiply that 10 to 40 times slower."""

    def __init__(self, params: Any, lr: float, weight_decay: float) -> None:
        super().__init__(params, lr=lr, weight_decay=weight_decay, adjust_lr_fn="match_rms_adamw")

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One update of all matrices that have a gradient."""
        if any(p.device.type != "cpu" for group in self.param_groups for p in group["params"]):
            return super().step(closure)  # type: ignore[no-untyped-call, no-any-return]
        assert closure is None
        for group in self.param_groups:
            matrices: list[Tensor] = []
            gradients: list[Tensor] = []
            means: list[Tensor] = []
            self._init_group(group, matrices, gradients, means)
            for matrix, gradient, mean in zip(matrices, gradients, means, strict=True):
                mean.lerp_(gradient, 1 - group["momentum"])
                update = gradient.lerp(mean, group["momentum"]) if group["nesterov"] else mean
                update = orthogonal(update, group["ns_coefficients"], group["ns_steps"], group["eps"])
                matrix.mul_(1 - group["lr"] * group["weight_decay"])
                matrix.add_(update, alpha=-group["lr"] * 0.2 * math.sqrt(max(matrix.shape)))
        return None


def orthogonal(matrix: Tensor, coefficients: tuple[float, float, float], steps: int, eps: float) -> Tensor:
    """[rows, columns] the same with singular values of about 1, by iterations of Newton and Schulz in float32 (Jordan,
    https://kellerjordan.github.io/posts/muon/)."""
    a, b, c = coefficients
    wide = matrix.float().T if matrix.shape[0] > matrix.shape[1] else matrix.float()
    wide = wide / wide.norm().clamp(min=eps)
    for _ in range(steps):
        gram = wide @ wide.T
        wide = torch.addmm(wide, torch.addmm(gram, gram, gram, beta=b, alpha=c), wide, beta=a)
    return wide.T if matrix.shape[0] > matrix.shape[1] else wide
