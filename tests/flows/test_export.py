"""`rlvf export`: what other programs load."""

import errno
import json
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils.logging import enable_progress_bar

from flows.cli import main
from infra.weights.whole import write_whole
from rl.config import PolicyConfig
from rl.loading.policy import load_policy
from rl.lora_config import LoraConfig

pytestmark = pytest.mark.slow

DOCUMENTED_RUN = "20260101-120000-tiny"
TEXT = torch.arange(5, 25)[None]


def _documented() -> str:
    """The lines by which docs/models.md loads a model."""
    text = (Path(__file__).parents[2] / "docs" / "models.md").read_text()
    lines = text.partition("## The trained model in other programs")[2].split("\n\n")[2]
    return "\n".join(line.removeprefix("    ") for line in lines.splitlines())


@torch.no_grad()
def logits(model: Any) -> torch.Tensor:
    found: torch.Tensor = model(input_ids=TEXT).logits
    return found


@pytest.fixture
def here(lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("flows.cli.signal.signal", lambda *_: None)  # this process keeps its own
    monkeypatch.setattr("sys.excepthook", sys.excepthook)
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.setenv("RLVF_HOME", str(lab.home))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("base", ["stored", pytest.param("public", marks=pytest.mark.slow)])
def test_merged_weights_are_the_model_with_its_adapters(
    lab: Any, here: Path, base: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lora = {"policy.lora": "4", "policy.lora.base": "bfloat16", "sync.base": base, "optimizer.lr": "1e-2"}
    lora["sync.dtype"] = "float32"  # what is published of a run that has not ended is rounded otherwise
    run = Path(lab.train(steps="2", **lora).run)
    config = PolicyConfig(device="cpu", lora=LoraConfig(rank=4, base="bfloat16"))
    result = here / "kept"
    shutil.copytree(run / "model", result)
    policy = load_policy(str(lab.policy), config, adapters=result)
    expected = logits(policy.model)
    assert (logits(AutoModelForCausalLM.from_pretrained(lab.policy)) - expected).abs().max() > 1e-3
    for ended in (True, False):
        if not ended:
            shutil.rmtree(run / "model")
        (at := here / f"ended-{ended}").mkdir()
        monkeypatch.chdir(at)
        capsys.readouterr()
        enable_progress_bar()  # type: ignore[no-untyped-call]
        main(["export", run.name, "--merge", "--dtype", "float32", "--json"])
        shown = capsys.readouterr()
        assert "Loading weights" not in shown.err
        merged = Path(json.loads(shown.out)["model"])
        assert merged == at / run.name
        assert (logits(AutoModelForCausalLM.from_pretrained(merged)) - expected).abs().max() < 1e-4
        assert len(AutoTokenizer.from_pretrained(merged)) == len(policy.tokenizer)
        load_policy(str(merged), PolicyConfig(device="cpu"))  # whose completions end

        exec(_documented().replace(DOCUMENTED_RUN, run.name))
        assert capsys.readouterr().out.strip()
        assert json.loads(shown.out)["dtype"] == "float32"
        assert shown.err.splitlines()[-1] == "policy v2 in float32"

        main(["export", run.name, "--merge", "--out", "small"])
        rounded = "policy v2 in bfloat16, to which what the adapters add is rounded; --dtype float32 keeps it"
        assert capsys.readouterr().err.splitlines()[-1] == rounded
        small = load_file(at / "small" / "model.safetensors")
        exact = load_file(merged / "model.safetensors")
        assert small.keys() == exact.keys()
        assert all(torch.equal(small[name], exact[name].to(torch.bfloat16)) for name in small)

        main(["export", run.name, "--out", "adapters"])
        names = {file.name for file in (at / "adapters").iterdir()}
        assert {"adapter_config.json", "adapter_model.safetensors", "tokenizer.json"} < names
        assert not names & {"manifest.json", "model.safetensors"}
        mine, kept = (load_file(folder / "adapter_model.safetensors") for folder in (at / "adapters", result))
        assert all(torch.equal(mine[name], kept[name]) for name in kept)


@pytest.mark.parametrize("base", ["stored", pytest.param("public", marks=pytest.mark.slow)])
def test_a_model_without_adapters_is_copied(
    lab: Any, here: Path, base: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(lab.train(steps="1", **{"sync.base": base}).run)
    expected = load_file(run / "model" / "model.safetensors")
    for folder in (run / "model", run / "weights" / "v0"):  # as whoever may write to a run that is shared can
        (folder / ".ipynb_checkpoints").mkdir()
        (folder / "program").write_text("#!/bin/sh\n")
        for file in folder.iterdir():
            file.chmod(0o6755)
    main(["export", run.name, "--out", "whole"])
    shutil.rmtree(run / "model")  # as of a run that goes on
    main(["export", run.name, "--merge", "--out", "newest"])
    for name in ("whole", "newest"):
        found = load_file(here / name / "model.safetensors")
        assert found.keys() == expected.keys()
        assert all(torch.equal(found[tensor], expected[tensor]) for tensor in expected)
        AutoModelForCausalLM.from_pretrained(here / name)
        files = list((here / name).iterdir())
        assert {"config.json", "tokenizer.json"} < {file.name for file in files}
        assert not {"program", "manifest.json", ".ipynb_checkpoints"} & {file.name for file in files}
        assert not any(file.stat().st_mode & 0o7111 for file in files)
    capsys.readouterr()
    with pytest.raises(SystemExit) as stopped:
        main(["export", run.name, "--out", "whole"])
    assert stopped.value.code == 2
    assert "is there already; name a new folder" in capsys.readouterr().err

    def appear(*given: Any) -> None:
        write_whole(*given)
        (here / "late").mkdir(exist_ok=True)
        (here / "late" / "thesis.txt").write_text("mine")

    monkeypatch.setattr("tasks.exported.write_whole", appear)
    with pytest.raises(SystemExit) as stopped:
        main(["export", run.name, "--out", "late"])
    assert stopped.value.code == 2
    said = f"{here}/late: has appeared meanwhile and stays as it is; the model is in {here}/late-2"
    assert said in capsys.readouterr().err
    assert [file.name for file in (here / "late").iterdir()] == ["thesis.txt"]
    AutoModelForCausalLM.from_pretrained(here / "late-2")


def test_of_a_run_that_went_on_after_its_end_the_newest_version_is_written(
    lab: Any, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(lab.train(steps="1", **{"optimizer.lr": "1e-2"}).run)
    before = here / "model"
    shutil.copytree(run / "model", before)
    lab.train(str(run), steps="2", **{"optimizer.lr": "1e-2"})
    newest = load_file(run / "model" / "model.safetensors")
    shutil.rmtree(run / "model")
    shutil.copytree(before, run / "model")  # as if it had been killed at step 2
    main(["export", run.name, "--out", "exported", "--json"])
    shown = capsys.readouterr()
    assert json.loads(shown.out.splitlines()[-1]) == {"model": str(here / "exported"), "step": 2, "dtype": "float32"}
    assert shown.err.splitlines()[-1] == "policy v2 in float32"
    found = load_file(here / "exported" / "model.safetensors")
    assert found.keys() == newest.keys()
    assert all(torch.equal(found[name], newest[name]) for name in newest)
    # before it was published
    for version in (run / "weights").glob("v2*"):
        shutil.rmtree(version)
    main(["export", run.name, "--out", "earlier"])
    shown = capsys.readouterr()
    assert shown.err.splitlines()[-2:] == [
        "policy v1 in float32",
        f"rlvf: step 2 is saved and not published: rlvf train --resume {run.name} publishes it",
    ]


def test_where_nothing_can_be_written_the_option_is_named(
    lab: Any, here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = Path(lab.train(steps="1").run)
    out = here / "full" / "out"

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(out.with_name(".out.tmp")))

    monkeypatch.setattr("infra.disk.temporary_beside", full)
    monkeypatch.setattr("flows.report.charts.reward_curve", full)
    for command in ("export", "report"):
        with pytest.raises(SystemExit) as ended:
            main([command, run.name, "--out", str(out)])
        assert ended.value.code == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.endswith(f"--out {out}: cannot be written (No space left on device); name a place elsewhere")
