"""Weights in 8 bits."""

import pytest
import torch

from infra.weights.quantization import quantized, restored


def test_a_matrix_comes_back_within_half_a_level_of_its_row() -> None:
    draws = torch.Generator().manual_seed(0)
    weights = {
        "matrix": torch.randn(5, 40, generator=draws) * torch.tensor([1e-6, 1e-3, 1.0, 1e3, 0.0])[:, None],
        "kernel": torch.randn(3, 2, 4, generator=draws).bfloat16(),
        "norm": torch.randn(40, generator=draws),
        "count": torch.arange(3),
    }
    sent = quantized(weights)
    assert {name: str(tensor.dtype) for name, tensor in sent.items()} == {
        "matrix": "torch.int8",
        "matrix:scale": "torch.float32",
        "kernel": "torch.int8",
        "kernel:scale": "torch.float32",
        "norm": "torch.float32",
        "count": "torch.int64",
    }
    back = restored(sent)
    assert set(back) == set(weights)
    for name in ("matrix", "kernel"):
        wanted = weights[name].double().flatten(1)
        level = wanted.abs().amax(1) / 127
        off = (back[name].double().flatten(1) - wanted).abs().amax(1)
        assert (off <= 0.501 * level).all()
    assert torch.equal(back["norm"], weights["norm"])
    assert torch.equal(back["count"], weights["count"])


def test_a_matrix_that_is_to_stay_wide_does() -> None:
    weights = {"gate": torch.randn(4, 4).bfloat16(), "up": torch.ones(4, 4)}
    sent = quantized(weights, lambda name: name == "gate")
    assert sent.keys() == {"gate", "up", "up:scale"}
    assert sent["gate"].dtype == torch.float32
    assert torch.equal(restored(sent)["gate"], weights["gate"].float())


def test_other_weights_are_left_alone() -> None:
    weights = {"a": torch.ones(2, 2, dtype=torch.bfloat16)}
    assert restored(weights) is weights


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_is_quantized_shares_no_memory(dtype: torch.dtype) -> None:
    weights = {"v": torch.zeros(3, dtype=dtype), "n": torch.zeros(3, dtype=torch.int64)}
    sent = quantized(weights)
    weights["v"] += 1
    weights["n"] += 1
    assert sent["v"].sum() == sent["n"].sum() == 0
