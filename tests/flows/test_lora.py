"""Runs that train adapters on a frozen model."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from flows.options.reading import OptionError
from flows.planner.calls import graph_named
from flows.planner.memory import sizes
from flows.report.summary import run_name, summary
from flows.start.runs import Run
from flows.start.saved import saved_config
from infra.runs.record import read_record
from infra.weights.mirror import Mirror
from infra.weights.version import newest_version

TEXT = torch.arange(5, 25)[None]


def bytes_in(folder: Path) -> int:
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def adapters(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "adapter_model.safetensors")


@pytest.mark.slow
@pytest.mark.parametrize("base", ["stored", "public"])
def test_a_run_learns_publishes_and_goes_on_with_adapters_alone(lab: Any, base: str) -> None:
    chosen = {
        "policy.lora": "4",
        "policy.lora.base": "bfloat16",
        "sync.base": base,
        "optimizer.lr": "1e-2",
        "staleness": "0",
    }
    run = Path(lab.train(steps="2", **chosen).run)
    whole = (lab.policy / "model.safetensors").stat().st_size
    assert (run / "base" / "model.safetensors").exists() == (base == "stored")
    for folder in (run / "state" / "2", run / "weights" / "v0", run / "model"):
        assert not (folder / "model.safetensors").exists()
        assert adapters(folder)
    assert (run / "weights" / "v2" / "difference").stat().st_size < whole / 30
    for step, kl in lab.metrics(run, "policy/mismatch_kl").items():
        assert kl < 1e-6, step  # of float32, though the base is rounded
    lab.train(resume=str(run), steps="3", **chosen)
    version = newest_version(str(run))
    assert version is not None
    assert version.step == 3
    with Mirror(str(run / "weights"), patience=0).at(version) as found:
        kept = adapters(run / "state" / "3")
        assert found.keys() == kept.keys()
        assert all(torch.equal(found[name], kept[name].bfloat16()) for name in kept)  # as the base is kept
        assert any(value.any() for name, value in found.items() if ".lora_B." in name)  # it has learned
    held = sizes(graph_named("grpo", kl=False), read_record(str(run), run), saved_config(str(run)), str(run))
    assert held["actor"] == pytest.approx(whole + sum(value.nbytes for value in kept.values()), rel=0.01)
    evaluation = lab.evaluate(policy=run.name, problems=str(lab.problems), samples="1")
    assert evaluation.step == 3
    model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(lab.policy), str(run / "model"))
    with torch.no_grad():
        assert torch.isfinite(model(input_ids=TEXT).logits).all()
    with pytest.raises(OptionError, match=r"cannot be resumed with policy\.lora\.rank: saved 4, now 8"):
        lab.train(resume=str(run), steps="4", **{**chosen, "policy.lora": "8"})


@pytest.mark.slow
def test_adapters_on_the_tiny_policy_belong_to_a_model_that_is_stored_with_the_run(
    lab: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    result = lab.train(steps="1", policy="tiny", **{"policy.lora": "2"})
    run = Path(result.run)
    assert re.search(r"lora rank 2: \d\d,\d\d\d of 0\.9M parameters are trained", capsys.readouterr().err)
    begun = Run(result.run, saved_config(result.run), resumed=False)
    shown = summary(begun, result, 1.0)
    assert f"{run}/model (adapters, peft's layout; " in shown
    assert f"rlvf export {run_name(begun)} --merge writes a whole model)" in shown
    assert (run / "base" / "config.json").exists()
    model = AutoModelForCausalLM.from_pretrained(run / "model")  # its configuration names the stored one
    assert any(".lora_A." in name for name, _ in model.named_parameters())
    shutil.rmtree(run / "base")
    lab.train(resume=str(run), steps="2", policy="tiny", **{"policy.lora": "2"})
    assert "base: it has no manifest.json; it was stored anew from" in capsys.readouterr().err
    assert (run / "base" / "config.json").exists()
    with pytest.raises(ValueError, match=r"but an adapter; merge it into its model first, with `rlvf export"):
        lab.train(steps="1", policy=str(run / "model"))


@pytest.mark.slow
def test_what_does_not_go_with_adapters_is_refused(lab: Any) -> None:
    with pytest.raises(ValueError, match="an adapter is a product of two; take adamw"):
        lab.train(steps="1", **{"policy.lora": "2", "optimizer.name": "muon"})
    with pytest.raises(ValueError, match="adapters are a run's"):
        lab.evaluate(policy=str(lab.policy), problems=str(lab.problems), **{"policy.lora": "2"})
