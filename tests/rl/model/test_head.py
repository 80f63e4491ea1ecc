"""Logits of a model whose arithmetic is narrow."""

import pytest
import torch
from torch import nn

from rl.model import products
from rl.model.head import head_logits
from rl.model.products import CPU_SLICE, slices, wide_product, widened
from tests.rl.saved import Build


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_logits_are_not_rounded_to_the_type_of_the_arithmetic(dtype: torch.dtype, build_small: Build) -> None:
    model = build_small("qwen3").to(dtype)
    hidden = 8 * torch.randn(5, model.config.hidden_size, generator=torch.Generator().manual_seed(0)).to(dtype)
    logits = head_logits(model, hidden)
    assert logits.dtype == torch.float32
    exact = hidden.double() @ model.lm_head.weight.double().T
    torch.testing.assert_close(logits.double(), exact, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(model.lm_head(hidden).double(), exact, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("pays", [False, True])
@pytest.mark.parametrize("slice_of", [1, 64 * 7, 2**19])
def test_a_head_is_widened_in_slices_of_any_size(
    slice_of: int, autocast: bool, pays: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("rl.model.products.CPU_SLICE", slice_of)
    monkeypatch.setattr("rl.model.products.fast_at_bfloat16", lambda: pays)
    before = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    draws = torch.Generator().manual_seed(0)
    hidden = torch.randn(3, 64, generator=draws).bfloat16()
    head = nn.Linear(64, 50, dtype=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast), torch.no_grad():
        found = wide_product(hidden, head.weight, head.bias)
    wanted = hidden.double() @ head.weight.double().T + head.bias.double()
    torch.testing.assert_close(found.double(), wanted, atol=1e-5, rtol=1e-5)
    assert torch.backends.mkldnn.matmul.fp32_precision == before  # type: ignore[attr-defined]
    with widened(torch.bfloat16, torch.device("cpu")):
        inside = torch.backends.mkldnn.matmul.fp32_precision  # type: ignore[attr-defined]
    assert inside == ("bf16" if pays else before)


def test_slices_are_as_large_as_a_device_likes_them() -> None:
    head = torch.empty(4096, 1024, device="meta")
    assert list(slices(head)) == [slice(0, 16384)]
    assert list(slices(torch.empty_like(head, device="cpu"))) == [slice(0, 2048), slice(2048, 4096)]
    assert CPU_SLICE == 2048 * 1024


@pytest.mark.parametrize(
    ("dtype", "fast", "amx", "expected"),
    [
        (torch.bfloat16, True, False, torch.bfloat16),
        (torch.bfloat16, True, True, torch.float32),
        (torch.bfloat16, False, False, torch.float32),
        (torch.float16, True, False, torch.float32),
    ],
)
def test_gradients_are_of_rounded_products_where_others_are_slow(
    dtype: torch.dtype, fast: bool, amx: bool, expected: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "fast_at_bfloat16", lambda: fast)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    assert products.gradient_type(dtype, torch.device("cpu")) == expected
