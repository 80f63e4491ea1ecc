"""On a CUDA device the sampler's captured graphs, the learner's attention in blocks and its 16-bit head compute what a
CPU computes."""

import sys
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.nn.attention.flex_attention import create_mask
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from rl.learning import passes
from rl.learning.learner import Learner
from rl.loading.parity import measure
from rl.model import blocks
from rl.model.blocks import WIDTH, Run, block_mask
from rl.model.memory import free_bytes, spare_bytes
from rl.model.policy import Policy
from rl.model.products import wide_product
from rl.records import Batch
from rl.sampling.engine import Engine
from rl.sampling.scheduling import Draw
from rl.sampling.slots import Slots
from tests.bench.parity import findings
from tests.rl.loading.test_parity import AGREE, chosen
from tests.rl.sampling.test_engine import check_same
from tests.rl.sampling.test_strides import added, run
from tests.rl.updates import PLAIN, Make, gradient_of

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
CUDA = torch.device("cuda")


@pytest.fixture
def on_cuda(make_policy: Make) -> Make:
    """Policies of the same weights as those of `make_policy`."""

    def make(*given: object, dtype: torch.dtype = torch.float32, **named: object) -> Policy:
        policy = make_policy(*given, **named)
        policy.model.to(CUDA)
        return replace(policy, device=CUDA, dtype=dtype)

    return make


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    """No test leaves kernels that were compiled for another."""
    yield
    blocks._kernel.cache_clear()
    torch._dynamo.reset()


def drawn_by(policy: Policy, *, strides: bool, most: int | None = None) -> tuple[Engine, list[Draw]]:
    engine = Engine(policy, Slots(policy, most=most, strides=strides), ends=policy.ends)
    draws = added(engine, policy)
    run(engine)
    return engine, draws


def has_kernels(slots: Slots) -> bool:
    return slots.backend.lean is not None and slots.backend.lean.kernels is not None


@pytest.mark.parametrize("name", ["qwen3", "llama", "gpt2", "gemma2"])
def test_graphs_draw_the_tokens_that_a_cpu_draws(name: str, make_policy: Make, on_cuda: Make) -> None:
    _, expected = drawn_by(make_policy(name, eager=4.0), strides=False)
    for most in (None, 6):
        engine, found = drawn_by(on_cuda(name, eager=4.0), strides=True, most=most)
        assert engine.slots.backend.graphs, "captured"
        assert name not in ("qwen3", "llama") or has_kernels(engine.slots)
        check_same(found, expected)


def test_without_a_compiler_attention_is_in_tensors_and_it_is_said(
    on_cuda: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setitem(sys.modules, "rl.model.kernels", None)
    monkeypatch.delattr("rl.model.kernels", raising=False)
    slots = Slots(on_cuda())
    assert slots.backend.lean is not None
    assert not has_kernels(slots)
    assert "no kernels for its attention, because" in caplog.text


def test_the_weights_of_a_graph_are_those_that_are_written_meanwhile(make_policy: Make, on_cuda: Make) -> None:
    policy, other = on_cuda(eager=4.0), make_policy(seed=1, eager=4.0)
    engine, _ = drawn_by(policy, strides=True)
    policy.load_weights(dict(other.weights()))
    found = added(engine, policy)
    run(engine)
    check_same(found, drawn_by(other, strides=False)[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["qwen3", "llama"])
def test_sampler_learner_and_model_agree(name: str, dtype: torch.dtype, on_cuda: Make) -> None:
    policy = on_cuda(name)
    policy.model.to(dtype)
    found = measure(replace(policy, dtype=dtype))
    assert found.gap < found.tolerance
    assert dtype != torch.float32 or found.gap < 1e-4


def test_architectures_agree_there_too() -> None:
    for finding in findings(chosen(AGREE), "cuda"):
        assert finding.gap is not None, finding
        assert finding.gap < 1e-4, finding


@pytest.mark.parametrize("name", ["qwen3", "llama"])
def test_attention_is_in_blocks_and_the_gradient_is_that_of_a_cpu(
    name: str,
    build_small: Callable[..., PreTrainedModel],
    tokenizer: PreTrainedTokenizerBase,
    drawn: Callable[..., Batch],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(passes, "LARGE", 0)
    monkeypatch.setattr(passes, "LONG", 0)
    here, there = (  # no kernel has heads of less than 16
        Learner(
            Policy(build_small(name, hidden_size=64, head_dim=16).to(device), tokenizer, device, torch.float32), PLAIN
        )
        for device in (torch.device("cpu"), CUDA)
    )
    batch = drawn(here.policy)
    expected, found = gradient_of(here, batch), gradient_of(there, batch)
    assert not here.accumulation.blocks
    assert there.accumulation.blocks, there.learned.said
    for one, other in zip(found, expected, strict=True):
        assert (one.cpu() - other).norm() <= 1e-4 * other.norm() + 1e-6


def test_rows_of_all_lengths_are_one_kernel() -> None:
    counters.clear()
    for blocks_of in (3, 2, 9, 40, 5):  # the first of another number than the heads
        length = blocks_of * WIDTH
        runs = [Run(0, length // 3, 0), Run(length // 3, length // 2, 0), Run(length // 2, length, 2)]
        mask = block_mask(runs, length, CUDA)
        query = torch.randn(1, 4, length, 16, device=CUDA, requires_grad=True)
        key, value = (torch.randn(1, 2, length, 16, device=CUDA, requires_grad=True) for _ in range(2))
        wide = [one.repeat_interleave(2, 1) for one in (key, value)]
        seen = create_mask(mask.mask_mod, 1, 1, length, length, device="cuda")
        plain = torch.nn.functional.scaled_dot_product_attention(query, *wide, seen).transpose(1, 2)
        found, _ = blocks.attend(torch.nn.Identity(), query, key, value, mask)
        torch.testing.assert_close(found, plain, atol=1e-4, rtol=1e-4)
        toward = torch.randn_like(plain)
        for one, other in zip(
            torch.autograd.grad(found, (query, key, value), toward),
            torch.autograd.grad(plain, (query, key, value), toward),
            strict=True,
        ):
            torch.testing.assert_close(one, other, atol=1e-3, rtol=1e-3)
    assert counters["stats"]["unique_graphs"] == 1


@pytest.mark.parametrize("name", ["qwen3", "llama"])
def test_an_update_in_bfloat16_points_where_that_in_float32_points(
    name: str, make_policy: Make, on_cuda: Make, drawn: Callable[..., Batch]
) -> None:
    batch = drawn(make_policy(name, eager=4.0))
    exact, found = (
        torch.cat([one.flatten().cpu() for one in gradient_of(Learner(policy, PLAIN), batch)])
        for policy in (make_policy(name, eager=4.0), on_cuda(name, eager=4.0, dtype=torch.bfloat16))
    )
    assert torch.cosine_similarity(exact, found, dim=0) > 0.99


def test_a_head_of_16_bits_adds_up_in_float32() -> None:
    torch.manual_seed(0)
    hidden, weight = (torch.randn(rows, 256, device=CUDA).bfloat16() for rows in (70, 3000))
    exact: Tensor = hidden.double() @ weight.double().T
    assert (wide_product(hidden, weight).double() - exact).abs().max() < 1e-3


def test_memory_that_is_free_counts_what_pytorch_keeps() -> None:
    before = free_bytes(CUDA)
    kept = torch.empty(2**30, dtype=torch.uint8, device=CUDA)
    assert before - free_bytes(CUDA) == pytest.approx(2**30, rel=0.01)
    del kept
    assert free_bytes(CUDA) == pytest.approx(before, rel=0.01)
    assert spare_bytes(CUDA, processes=2) == pytest.approx(0.4 * before, rel=0.01)
