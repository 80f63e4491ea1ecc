"""A small model's products in C beside float64, whatever the number of rows, inputs and outputs."""

import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from transformers import PreTrainedTokenizerBase

from rl.model import compiled, cpu_linear, lean
from rl.model.cpu_kernels import CpuKernels
from rl.model.cpu_linear import CpuLinear
from rl.model.lean import TorchLinear
from rl.sampling import backend
from rl.sampling.slots import Slots
from tests.rl.model.test_lean import KINDS, differ, drawn, made

pytestmark = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a compiler of C: install gcc or clang")
ROWS = (1, 2, 4, 5, 12, 16, 17, 29, 191, 193, 400)
SIZES = ((1, 1), (7, 31), (24, 40), (128, 64), (96, 33))


@pytest.fixture(autouse=True, params=["native", "AVX2"])
def instructions(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """As this processor has, and as most have."""
    if request.param == "native":
        yield
        return
    if torch.backends.cpu.get_cpu_capability() != "AVX512":
        pytest.skip("needs a processor with AVX-512, to leave it out")
    monkeypatch.setenv("CC", "cc -mno-avx512f")
    compiled.attempted.cache_clear()
    yield
    compiled.attempted.cache_clear()


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(("inputs", "outputs"), SIZES)
def test_products_are_those_of_float64(
    inputs: int, outputs: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_linear, "WORK", 1)
    for rows in ROWS:
        check_products(rows, inputs, outputs, threads)


def check_products(rows: int, inputs: int, outputs: int, threads: int) -> None:
    torch.manual_seed(0)
    states, first, second = (torch.randn(each, inputs) for each in (rows, outputs, outputs))
    bias, hidden = torch.randn(2 * outputs), torch.randn(rows, outputs)
    linear, before = CpuLinear(), torch.get_num_threads()
    exact, of_second = (states.double() @ each.double().T for each in (first, second))
    expected = [*torch.cat([exact, of_second], 1).add(bias).split(outputs, 1), hidden.double() + exact]
    torch.set_num_threads(threads)
    try:
        found = list(linear.projections([first, second], [bias[:outputs], bias[outputs:]])(states))
        found.append(linear.adds(first)(hidden, states))
        gated = linear.gates(first, second)(states)
    finally:
        torch.set_num_threads(before)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one.double(), other, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(gated.double(), F.silu(exact) * of_second, atol=1e-3, rtol=1e-5)


def test_a_row_is_the_same_whatever_is_beside_it() -> None:
    """So that tokens do not follow from what is drawn at once."""
    states, weight = torch.randn(400, 128), torch.randn(256, 128)
    project, gates = CpuLinear().projections([weight], None), CpuLinear().gates(weight[:100], weight[100:200])
    whole, gated = project(states)[0], gates(states)
    for rows in (1, 3, 4, 7, 12, 31):
        assert torch.equal(project(states[-rows:])[0], whole[-rows:])
        assert torch.equal(gates(states[-rows:]), gated[-rows:])


def test_states_that_are_apart_in_memory_and_what_is_no_number() -> None:
    states, weight = torch.randn(10, 48)[:, ::2], torch.randn(33, 24)
    project = CpuLinear().projections([weight], None)
    torch.testing.assert_close(project(states)[0], states @ weight.T, atol=1e-4, rtol=1e-5)
    states[3, 5] = torch.nan
    assert project(states)[0].isnan().nonzero()[:, 0].unique().tolist() == [3]
    with pytest.raises(AssertionError, match="float32 alone"):
        project(states.double())


@pytest.mark.parametrize("pays", [True, False])
@pytest.mark.parametrize("name", KINDS)
def test_a_decoder_draws_with_them_what_it_draws_by_pytorch(
    name: str, pays: bool, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backend, "pays", lambda: pays)
    policy = made(name, tokenizer)
    slots = Slots(policy, most=7)
    assert slots.backend.lean is not None
    assert isinstance(slots.backend.lean._linear, CpuLinear if pays else TorchLinear)
    found = drawn(policy, slots)
    slots.backend.lean = None
    assert differ(found, drawn(policy, slots)) < 1e-5


def test_a_large_model_keeps_its_matrices_as_they_are(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lean, "LARGEST", 0)
    policy = made("qwen3", tokenizer)
    decoder = lean.LeanDecoder(policy.model, CpuKernels(16, 2, CpuLinear()))
    assert isinstance(decoder._linear, TorchLinear)


def test_a_compiler_that_makes_other_products_is_not_used_for_them(
    tmp_path: Path,
    tokenizer: PreTrainedTokenizerBase,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wrong = tmp_path / "cpu_linear.c"
    source = cpu_linear.SOURCE.read_text().replace(
        '"exponential.h"', f'"{cpu_linear.SOURCE.with_name("exponential.h")}"'
    )
    assert "out[i] += sums[i]" in source
    wrong.write_text(source.replace("out[i] += sums[i]", "out[i] = sums[i]"))
    monkeypatch.setattr(cpu_linear, "SOURCE", wrong)
    with pytest.raises(ValueError, match="other products"):
        CpuLinear()
    monkeypatch.setattr(backend, "pays", lambda: True)
    slots = Slots(made("qwen3", tokenizer))
    assert slots.backend.lean is not None
    assert isinstance(slots.backend.lean.kernels, CpuKernels)
    assert slots.backend.lean.kernels.linear is None
    (said,) = (record for record in caplog.records if "its products are PyTorch's" in record.message)
    assert said.levelno == logging.WARNING
