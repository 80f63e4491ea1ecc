"""Muon on a CPU: torch's step, with iterations that lose less."""

import numpy as np
import pytest
import torch

from rl.learning.muon import Muon, orthogonal

COEFFICIENTS = (3.4445, -4.7750, 2.0315)


@pytest.mark.parametrize("shape", [(8, 8), (24, 8), (8, 40), (1, 5)])
def test_the_iterations_are_the_polynomial_of_the_singular_values(shape: tuple[int, int]) -> None:
    matrix = np.random.default_rng(0).normal(size=shape)
    left, values, right = np.linalg.svd(matrix, full_matrices=False)
    values = values / np.linalg.norm(values)
    for _ in range(5):
        a, b, c = COEFFICIENTS
        values = a * values + b * values**3 + c * values**5
    found = orthogonal(torch.from_numpy(matrix), COEFFICIENTS, 5, 1e-7).numpy()
    assert found.dtype == np.float32
    assert found == pytest.approx(left * values @ right, abs=1e-5)


def test_it_steps_as_torch_does_up_to_bfloat16() -> None:
    generator = torch.Generator().manual_seed(0)
    begin = [torch.randn(shape, generator=generator) for shape in ((16, 16), (48, 16), (16, 40))]
    ours, theirs = ([torch.nn.Parameter(each.clone()) for each in begin] for _ in range(2))
    optimizers = [
        Muon(ours, lr=0.02, weight_decay=0.1),
        torch.optim.Muon(theirs, lr=0.02, weight_decay=0.1, adjust_lr_fn="match_rms_adamw"),
    ]
    for _ in range(3):
        gradients = [torch.randn(each.shape, generator=generator) for each in begin]
        for parameters, optimizer in zip((ours, theirs), optimizers, strict=True):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()
    for mine, other, first in zip(ours, theirs, begin, strict=True):
        moved = (other - first).norm()
        assert (mine - other).norm() < 0.02 * moved
        assert (mine - other).norm() > 0  # torch's are rounded
    ((_, state), *_) = optimizers[0].state.items()
    assert set(state) == {"momentum_buffer"}
