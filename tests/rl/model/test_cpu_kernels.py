"""The kernels of a decoding step on a processor: beside each row's attention in float64, in sequences of an engine, and
where there is no compiler."""

import gc
import importlib
import logging
import shutil
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from transformers import PreTrainedTokenizerBase

from rl.compiler import NoCompilerError
from rl.model import compiled, cpu_kernels, processor
from rl.model.attention import Grid
from rl.model.cpu_kernels import CpuKernels
from rl.sampling.cache import DecodePass, SlotCache
from rl.sampling.slots import Slots
from tests.rl.model.test_kernels import FEW, MANY, check
from tests.rl.model.test_lean import KINDS, differ, drawn, made

needs_compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="needs a compiler of C: install gcc or clang")


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A machine's folder of what was measured, and nothing compiled yet in this process."""
    monkeypatch.setenv(processor.MEASURED, str(tmp_path / "cache" / "processor.json"))
    compiled.attempted.cache_clear()
    yield tmp_path / "cache"
    compiled.attempted.cache_clear()


def program(folder: Path, text: str) -> str:
    """A compiler that does what a shell script says."""
    file = folder / "compiler"
    file.write_text(f"#!/bin/sh\n{text}\n")
    file.chmod(0o755)
    return str(file)


@needs_compiler
@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize(
    ("places", "size", "heads", "keys"),
    [(FEW, 16, 4, 2), (FEW, 24, 7, 1), (MANY, 32, 4, 2), (FEW, 128, 16, 2), (FEW, 6, 3, 3)],
)
def test_attention_is_that_of_each_row_alone(
    places: Sequence[int], size: int, heads: int, keys: int, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_kernels, "ROWS", 2)
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        check(CpuKernels(size, heads // keys), places, size, heads, keys)
    finally:
        torch.set_num_threads(before)


@needs_compiler
def test_norms_are_those_of_float64() -> None:
    states, weight = torch.randn(37, 129), torch.rand(129)
    found = CpuKernels(16, 1).rms_norm(states, (129,), weight, 1e-6)
    expected = F.rms_norm(states.double(), (129,), weight.double(), 1e-6)
    torch.testing.assert_close(found.double(), expected, atol=1e-6, rtol=1e-6)
    states[3, 5] = torch.nan
    found = CpuKernels(16, 1).rms_norm(states, (129,), weight, 1e-6)
    assert found[3].isnan().all()
    assert found.isnan().any(1).sum() == 1


@needs_compiler
def test_gates_are_those_of_float64() -> None:
    states = 20 * torch.randn(37, 2 * 131)
    gate, up = states.double().chunk(2, -1)
    kernels = CpuKernels(16, 1)
    for found in (kernels.gated(states), kernels.gated(*states.chunk(2, -1))):
        torch.testing.assert_close(found.double(), F.silu(gate) * up, atol=1e-5, rtol=1e-6)
    states[3, 5] = torch.nan
    assert kernels.gated(states).isnan().sum() == 1
    states[4, 7], states[4, 131 + 7] = -torch.inf, 1.0
    assert kernels.gated(states)[4, 7].isnan()  # as of tensors


@needs_compiler
@pytest.mark.parametrize("name", KINDS)
def test_an_engine_draws_with_them_what_it_draws_without(
    name: str, cache: Path, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = made(name, tokenizer)
    slots = Slots(policy, most=7)
    assert isinstance(slots.backend.lean and slots.backend.lean.kernels, CpuKernels)
    monkeypatch.setattr(compiled, "c_compiler", lambda: raises(NoCompilerError("there is none")))
    compiled.attempted.cache_clear()
    assert list(cache.iterdir())
    without = Slots(policy, most=7)
    assert without.backend.lean is not None
    assert without.backend.lean.kernels is None
    assert differ(drawn(policy, slots), drawn(policy, without)) < 1e-5


@needs_compiler
def test_prompts_of_several_threads_are_those_of_one(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = made("qwen3", tokenizer)
    monkeypatch.setattr(cpu_kernels, "ROWS", 2)
    found, before = [], torch.get_num_threads()
    slots = Slots(policy)
    assert isinstance(slots.backend.lean and slots.backend.lean.kernels, CpuKernels)
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            found.append(drawn(policy, slots))
    finally:
        torch.set_num_threads(before)
    assert max(differ(found[0], other) for other in found[1:]) < 1e-5


@needs_compiler
def test_a_key_that_has_no_place_is_refused_and_not_written() -> None:
    kernels = CpuKernels(16, 1)
    cache = SlotCache(2, 1, 3, 1, share=True, grows=False)
    cache.prompts_kept.layers[0] = torch.zeros(1, 1, 1, 16), torch.zeros(1, 1, 1, 16)
    cache.rows.layers[0] = torch.zeros(2, 1, 3, 16), torch.zeros(2, 1, 3, 16)
    for at in (3, -1):
        step = DecodePass(
            cache, torch.tensor([0, at]), 3, Grid.of([0, 0], 1, torch.device("cpu")), torch.ones(1).long(), 1
        )
        states, cos = torch.ones(2, 16), torch.ones(2, 1, 16)
        with pytest.raises(IndexError, match="kept outside"):
            kernels.attend(states, states, states, None, 0.0, cos, cos, 1.0, step, 0)


@needs_compiler
def test_what_is_no_number_stays_none(tokenizer: PreTrainedTokenizerBase) -> None:
    policy = made("qwen3", tokenizer)
    slots = Slots(policy)
    assert isinstance(slots.backend.lean and slots.backend.lean.kernels, CpuKernels)
    with torch.no_grad():
        policy.model.model.layers[1].self_attn.v_proj.weight[0, 0] = torch.nan
    assert all(np.isnan(draw.logprobs).all() for draw in drawn(policy, slots))


@needs_compiler
def test_scores_far_apart_are_those_of_float64() -> None:
    """Weights down to nothing, and of one key alone."""
    size, length = 16, 200
    cache = SlotCache(1, 1, 1, length, share=True, grows=False)
    keys = torch.zeros(1, 1, length, size)
    keys[0, 0, :, 0] = torch.linspace(-400, 0, length)
    cache.prompts_kept.layers[0] = keys, torch.randn(1, 1, length, size)
    cache.rows.layers[0] = torch.zeros(1, 1, 1, size), torch.zeros(1, 1, 1, size)
    zero = torch.zeros(1, dtype=torch.int64)
    for scale in (1.0, 0.01, 100.0):
        step = DecodePass(cache, zero, 1, Grid.of([0], 1, zero.device), zero + length, length)
        query = F.one_hot(zero, size).float()
        key = -1e6 * query  # its own is never seen
        cos, sin = torch.ones(1, 1, size), torch.zeros(1, 1, size)
        found = CpuKernels(size, 1).attend(query, key, key, None, 0.0, cos, sin, scale, step, 0)
        expected = (keys[0, 0, :, 0].double() * scale).softmax(0) @ cache.prompts_kept.layers[0][1][0, 0].double()
        torch.testing.assert_close(found[0].double(), expected, atol=1e-6, rtol=1e-5)


@needs_compiler
def test_a_compiler_may_be_given_options(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "cc -pipe")
    CpuKernels(16, 2)
    assert len(list(cache.iterdir())) == 1


@needs_compiler
def test_they_are_compiled_once_a_machine(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    CpuKernels(16, 2)
    CpuKernels(16, 1)
    assert len(list(cache.iterdir())) == 2  # and nothing that was made on the way
    compiled.attempted.cache_clear()  # as in the next process
    monkeypatch.setattr(compiled, "_compile", None)
    CpuKernels(16, 2)
    monkeypatch.setattr(compiled, "processor", lambda: "another machine that shares the folder")
    with pytest.raises(TypeError):  # it is compiled anew
        CpuKernels(16, 1)


@needs_compiler
def test_a_damaged_one_is_compiled_anew(cache: Path) -> None:
    CpuKernels(16, 2)
    (kept,) = cache.iterdir()
    kept.write_bytes(kept.read_bytes()[:1000])
    compiled.attempted.cache_clear()
    CpuKernels(16, 2)  # a part of a library would end the process that loads it
    assert kept.stat().st_size > 1000


@needs_compiler
def test_a_folder_that_cannot_be_written_keeps_none(cache: Path) -> None:
    cache.write_text("a file")
    CpuKernels(16, 2)
    assert cache.read_text() == "a file"


@needs_compiler
def test_where_nothing_is_kept_they_are_compiled_for_the_process(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(processor.MEASURED)
    CpuKernels(16, 2)
    assert not cache.exists()


def test_without_a_compiler_tensors_do_it_and_it_is_no_fault(
    cache: Path, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CC", str(cache / "nowhere"))
    with caplog.at_level(logging.INFO):
        slots = Slots(made("qwen3", tokenizer))
    assert slots.backend.lean is not None
    assert slots.backend.lean.kernels is None
    (said,) = [record for record in caplog.records if "no kernels for its attention" in record.message]
    assert said.levelno == logging.INFO
    assert "no compiler of C" in said.message


@pytest.mark.usefixtures("cache")
def test_without_a_compiler_a_model_that_is_dropped_is_gone(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    importlib.import_module("distributed.core")  # as a worker has: it changes how exceptions are copied
    monkeypatch.setenv("CC", str(tmp_path / "nowhere"))
    models = []
    for _ in range(2):
        policy = made("qwen3", tokenizer)
        Slots(policy)
        models.append(weakref.ref(policy.model))
        del policy
        gc.collect()
    assert [model() for model in models] == [None, None]


@pytest.mark.parametrize(
    ("compiler", "why"),
    [
        ("echo 'unknown option -march' >&2; exit 1", "does not compile them: unknown option"),
        ("exit 0", "made.so"),
        ("sleep 60 & wait", "did not compile them in 1 s"),
    ],
)
@pytest.mark.usefixtures("cache")
def test_a_compiler_that_cannot_compile_them_is_named(
    compiler: str,
    why: str,
    tmp_path: Path,
    tokenizer: PreTrainedTokenizerBase,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv("CC", program(tmp_path, compiler))
    monkeypatch.setattr(compiled, "SECONDS", 1)
    slots = Slots(made("qwen3", tokenizer))
    assert slots.backend.lean is not None
    assert slots.backend.lean.kernels is None
    (said,) = [record for record in caplog.records if "no kernels for its attention" in record.message]
    assert said.levelno == logging.WARNING
    assert why in said.message


def raises(error: Exception) -> str:
    raise error
