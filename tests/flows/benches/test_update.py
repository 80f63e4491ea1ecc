"""`rlvf bench update`, of a small model."""

import json
import subprocess
import sys
from unittest.mock import Mock

import pytest
import torch

from flows.benches import update
from flows.cli import main
from rl.learning.algorithm_config import AlgorithmSpec
from rl.model.lora import adapters_of
from rl.model.policy import choose_device, choose_dtype, dtype_name
from tests.rl.updates import moments

pytestmark = pytest.mark.slow

SMALL = {"layers": 1, "vocabulary": 600}
DTYPE = dtype_name(choose_dtype("auto", choose_device("auto"), lambda: 0))  # of a small model


def test_a_row_for_each_method() -> None:
    words = ["bench", "update", "--positions", "64", "--layers", "1", "--vocabulary", "600", "--json"]
    code = "from flows.cli import main; main()"
    ended = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=240)
    assert ended.returncode == 0, ended.stderr
    rows = json.loads(ended.stdout)["update"]
    assert [(row["positions"], row["method"]) for row in rows] == [(64, method) for method in update.METHODS]
    for row in rows:
        assert set(row) == {"positions", "method", "dtype", "extra_gb", "tokens_per_second"}
        assert 0 <= row["extra_gb"] < 2
        assert row["tokens_per_second"] > 1
    lines = [line.split(maxsplit=1) for line in ended.stderr.splitlines()[1:]]
    assert [count for count, _ in lines] == ["64"] * len(update.METHODS)
    assert all(rest.startswith(method) for (_, rest), method in zip(lines, update.METHODS, strict=True))


def test_what_does_not_fit_has_no_figures_and_is_not_tried(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(update, "free_bytes", lambda _: 100)
    monkeypatch.setattr(update, "update_directly", lambda *_: pytest.fail("tried"))
    nothing = update.UpdateFigure(64, "direct", DTYPE)
    assert update.measure(64, "direct", **SMALL) == nothing
    monkeypatch.setattr(update, "figures", lambda *_: iter([nothing]))
    main(["bench", "update", "--positions", "64", "--json"])
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {
        "layers": 2,
        "vocabulary": 151_936,
        "update": [{"positions": 64, "method": "direct", "dtype": DTYPE, "extra_gb": None, "tokens_per_second": None}],
    }
    assert "does not fit here" in shown.err


def test_a_processor_that_runs_out_of_memory_has_no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    full = RuntimeError("[enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate memory")
    monkeypatch.setattr(update, "update_directly", Mock(side_effect=full))
    assert update.measure(64, "direct", **SMALL) == update.UpdateFigure(64, "direct", DTYPE)
    monkeypatch.setattr(update, "update_directly", Mock(side_effect=RuntimeError("shapes differ")))
    with pytest.raises(RuntimeError, match="shapes differ"):
        update.measure(64, "direct", **SMALL)


@pytest.mark.parametrize("method", ["full", "one pass", "checkpointing"])
def test_all_methods_make_the_same_update(method: str) -> None:
    batch = update.batch_of(128, SMALL["vocabulary"])
    learners = [update.learner_of(**SMALL, **update.METHODS[of]) for of in (method, "direct")]
    learners[0].update(batch, AlgorithmSpec(), 1.0)
    update.update_directly(learners[1], batch)
    one, other = map(moments, learners)
    assert one.keys() == other.keys()
    for name, value in one.items():
        torch.testing.assert_close(value, other[name], atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize("method", ["lora", "lora, one pass", "lora, checkpointing"])
def test_the_rows_of_adapters_train_nothing_else(method: str) -> None:
    learner = update.learner_of(**SMALL, **update.METHODS[method])
    assert {id(parameter) for parameter in learner.parameters} == {
        id(parameter) for parameter in adapters_of(learner.policy.model).values()
    }
    assert learner.update(update.batch_of(128, SMALL["vocabulary"]), AlgorithmSpec(), 1.0).applied


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--positions", "1025"], "--positions 1025: give numbers from 64 on, beyond 1024 multiples of 1024"),
        (["--positions", "many"], "--positions many: give numbers from 64 on"),
        (["--layers", "0"], "--layers 0: give 1 to 28"),
        (["--vocabulary", "0"], "--vocabulary 0: give 1 or more"),
    ],
)
def test_what_cannot_be_measured_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "update", *words])
    assert stopped.value.code == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert shown.count("\n") == 1
