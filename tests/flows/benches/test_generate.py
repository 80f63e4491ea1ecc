"""`rlvf bench generate`, of small work."""

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import torch

from flows.benches import generate
from flows.benches.generate import ENGINES, GenerateFigure, Trial, policy_of, prompts_of, weight_bytes
from flows.benches.shapes import SHAPES, of_policy
from flows.cli import main
from rl.model.policy import Policy, choose_device, choose_dtype, dtype_name, save_policy

CPU = torch.device("cpu")
DTYPE = dtype_name(choose_dtype("auto", choose_device("auto"), lambda: 0))  # of a small model
Engine = Callable[[Policy, list[list[int]], int, int], int]
FEW = replace(SHAPES["tiny"], prompts=3, samples=2, tokens=5)


@pytest.mark.slow
def test_a_row_for_each_engine() -> None:
    words = ["bench", "generate", "--shapes", "tiny", "--prompts", "3", "--samples", "2", "--tokens", "5", "--json"]
    code = "from flows.cli import main; main()"
    ended = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    rows = json.loads(ended.stdout)["generate"]
    assert [(row["shape"], row["engine"]) for row in rows] == [("tiny", engine) for engine in ENGINES]
    for row in rows:
        assert set(row) == {"shape", "engine", "dtype", "tokens_per_second", "peak_gb", "limit_tokens_per_second"}
        assert row["tokens_per_second"] > 1
        assert 0 < row["peak_gb"] < 2
        assert row["limit_tokens_per_second"] == rows[0]["limit_tokens_per_second"] > row["tokens_per_second"]
    table = [line.split() for line in ended.stderr.splitlines()]
    assert [line[:2] for line in table[1:]] == [["tiny", engine] for engine in ENGINES] + [["tiny", "memory"]]


def loaded(process: psutil.Process) -> bool:
    """Whether it has imported PyTorch."""
    with suppress(psutil.Error):
        return bool(process.memory_info().rss > 150e6)
    return False


@pytest.mark.slow
def test_a_signal_ends_what_it_measures_with() -> None:
    words = ["bench", "generate", "--shapes", "0.6B", "--layers", "1", "--tokens", "4096"]
    code = "from flows.cli import main; main()"
    command = subprocess.Popen(
        [sys.executable, "-c", code, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with command:
        own = psutil.Process(command.pid)
        try:
            assert command.stdout is not None
            assert command.stdout.readline().startswith("shape")
            deadline = time.monotonic() + 120
            while not (working := [each for each in own.children() if loaded(each)]) and time.monotonic() < deadline:
                time.sleep(0.1)
            assert working
            command.terminate()
            said = command.communicate(timeout=60)
            assert command.returncode == 130, said
            assert psutil.wait_procs(working, timeout=60)[1] == []
        finally:
            for process in [*own.children(), command] if command.poll() is None else []:
                process.kill()


@pytest.mark.parametrize("engine", [generate.by_sampler, generate.by_generate, generate.by_generate_batch])
def test_no_end_token_ends_a_completion(engine: Engine) -> None:
    policy = policy_of(FEW, CPU, check=False)
    with torch.no_grad():  # every token has the same logit, but the end token, which comes nearly always
        policy.model.lm_head.weight = torch.nn.Parameter(torch.zeros_like(policy.model.lm_head.weight))
        bias = torch.zeros(len(policy.tokenizer))
        bias[policy.end] = 20
        policy.model.lm_head.bias = torch.nn.Parameter(bias)
    assert engine(policy, prompts_of(FEW, policy), FEW.samples, FEW.tokens) == FEW.sequences * FEW.tokens


def test_what_another_engine_cannot_do_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fails(*_: object) -> int:
        raise NotImplementedError("no pages\non this device")

    monkeypatch.setattr(generate, "by_generate_batch", fails)
    assert generate.measure("generate_batch", FEW) == Trial(DTYPE, why_not="no pages on this device")
    monkeypatch.setattr(generate, "by_sampler", fails)
    with pytest.raises(NotImplementedError):
        generate.measure("rlvf", FEW)

    nothing = GenerateFigure("tiny", "generate_batch", DTYPE, None, None, 7.0)
    monkeypatch.setattr(generate, "device_bandwidth", lambda: 1.0)
    monkeypatch.setattr(generate, "figures", lambda *_: iter([(nothing, "no pages on this device")]))
    main(["bench", "generate", "--shapes", "tiny", "--json"])
    shown = capsys.readouterr()
    [row] = json.loads(shown.out)["generate"]
    assert row["dtype"] == DTYPE
    assert (row["tokens_per_second"], row["peak_gb"], row["limit_tokens_per_second"]) == (None, None, 7.0)
    assert "generate_batch    no pages on this device" in shown.err


def test_a_figure_is_the_median_of_the_turns_and_none_where_one_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    speeds = {"rlvf": iter([5.0, 1.0, 2.0]), "generate": iter([1.0, 1.0, 1.0]), "generate_batch": iter([3.0, 3.0])}
    order = []

    def turn(_: object, engine: str, __: object) -> Trial | None:
        order.append(engine)
        speed = next(speeds[engine], None)
        return None if speed is None else Trial(DTYPE, speed, speed / 10, 1_000_000_000)

    monkeypatch.setattr(generate, "apart", turn)
    found = list(generate.figures(FEW, 3, gb_per_second=20.0))
    assert order == [*ENGINES] * 3
    assert found[0] == (GenerateFigure("tiny", "rlvf", DTYPE, 2.0, 0.5, 120.0), "")  # 6 sequences, 20 steps a second
    assert found[2][0] == GenerateFigure("tiny", "generate_batch", DTYPE, None, None, 120.0)
    assert "memory" in found[2][1]


def test_a_policy_of_the_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny = policy_of(FEW, CPU, check=False)
    save_policy(tiny, tmp_path)
    mine = replace(of_policy(str(tmp_path)), prompts=3, samples=2, tokens=5)
    turn = generate.measure("rlvf", mine)
    assert "Loading weights" not in capsys.readouterr().err  # transformers' bar, in the table
    assert turn.tokens_per_second > 1
    assert turn.weight_bytes == weight_bytes(tiny.model) == 4 * 905_984
    assert prompts_of(mine, tiny) == prompts_of(FEW, tiny)


def test_an_embedding_that_is_no_head_is_not_read_by_a_step() -> None:
    model = policy_of(FEW, CPU, check=False).model
    tied = weight_bytes(model)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    assert weight_bytes(model) == tied


def test_prompts_differ() -> None:
    shape = replace(FEW, prompts=200)
    prompts = prompts_of(shape, policy_of(shape, CPU, check=False))
    assert len({tuple(prompt) for prompt in prompts}) == 200


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--shapes", "tiny,7B"], "--shapes tiny,7B: there is no '7B'; the shapes are tiny, 0.6B"),
        (["--shapes", "tiny", "--policy", "tiny"], "argument --policy: not allowed with argument --shapes"),
        (["--policy", "/no/such"], "policy.model '/no/such': there is no such folder"),
        (["--prompts", "0"], "--prompts 0: give 1 or more"),
        (["--samples", "0"], "--samples 0: give 1 or more"),
        (["--tokens", "-1"], "--tokens -1: give 1 or more"),
        (["--repeats", "0"], "--repeats 0: give 1 or more"),
        (["--layers", "29"], "--layers 29: give 1 to 28"),
        (["--layers", "4", "--shapes", "tiny"], "--layers 4: only the shape 0.6B can have fewer"),
    ],
)
def test_what_cannot_be_measured_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "generate", *words])
    assert stopped.value.code == 2
    shown = capsys.readouterr().err
    assert said in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize("model", ["tiny", "0.6B", "mine"])
def test_more_tokens_than_the_model_has_positions_are_refused_before_anything_is_measured(
    model: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(generate, "device_bandwidth", pytest.fail)
    words = ["--shapes", model]
    if model == "mine":
        save_policy(policy_of(FEW, CPU, check=False), tmp_path)
        words = ["--policy", str(tmp_path)]
    with pytest.raises(SystemExit):
        main(["bench", "generate", *words, "--tokens", "40000"])
    shown = capsys.readouterr()
    assert re.search(r"--tokens 40000: \d+ tokens of prompt and 40000 of completion reach beyond", shown.err)
    assert (shown.out, shown.err.count("\n")) == ("", 1)


def test_fewer_layers_are_in_the_name() -> None:
    assert SHAPES["0.6B"].changed(None, None, None, 4).name == "0.6B, 4 layers"
    assert SHAPES["0.6B"].changed(None, None, None, 28).name == "0.6B"
    assert SHAPES["tiny"].changed(1, None, None, 4) == replace(SHAPES["tiny"], prompts=1)


@pytest.mark.slow
def test_the_type_of_the_arithmetic_is_that_which_is_given(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generate, "device_bandwidth", lambda: 1.0)
    words = "--shapes tiny --prompts 2 --samples 1 --tokens 3 --engines rlvf --dtype bfloat16 --json"
    main(["bench", "generate", *words.split()])
    [row] = json.loads(capsys.readouterr().out)["generate"]
    assert row["dtype"] == "bfloat16"
    assert row["tokens_per_second"] > 0
