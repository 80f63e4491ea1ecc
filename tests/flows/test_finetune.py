"""Training on examples, on a real cluster: demonstrations, DPO, a reward model."""

import gzip
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from flows.finetune_config import DpoConfig, FinetuneConfig, SftConfig
from flows.options.reading import OptionError, read_config
from flows.report.result import FinetuneResult, finished
from flows.start.finetunes import resumed_finetune, with_made_model
from infra.storage import store
from rl.problems.examples import DemonstrationsConfig
from rl.problems.tables import ProblemError
from rl.verifiers.spec import VerifierError
from tasks.calls.reward import BrokenRewardModelError
from tasks.sets.example_set import open_examples
from tests.flows.on_examples import tune, write_examples
from tests.processes import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_examples(tmp_path_factory.mktemp("examples"))


def test_demonstrations_are_learned(lab: Any, files: Path) -> None:
    run = tune(lab, "sft", files, steps="12", evaluate_every="6")
    result = json.loads((run / "result.json").read_text())
    assert (result["steps"], result["held_out"]) == (12, 12)
    losses = lab.metrics(run, "sft/held_out_loss")
    assert sorted(losses) == [0, 6, 12]
    assert losses[12] < 0.5 * losses[0]
    assert result["after"] == {"sft/held_out_loss": losses[12]}
    assert sorted(lab.metrics(run, "sft/loss")) == list(range(1, 13))
    _, tracked = lab.mlflow(run)
    assert tracked.info.status == "FINISHED"
    assert tracked.data.metrics["sft/held_out_loss"] == pytest.approx(losses[12])
    # the loss that transformers finds of what is held out, in what was saved
    model = AutoModelForCausalLM.from_pretrained(run / "model")
    tokenizer = AutoTokenizer.from_pretrained(run / "model")
    nats, count = 0.0, 0
    for each in open_examples(DemonstrationsConfig(path=str(files / "shown.jsonl")), 12).held_out:
        prompt, completion = (
            tokenizer(text, add_special_tokens=False)["input_ids"] for text in (f"{each.prompt}\n", each.completions[0])
        )
        given = torch.tensor([[*prompt, *completion, tokenizer.eos_token_id]])
        labels = torch.where(torch.arange(given.shape[1]) < len(prompt), -100, given)
        nats += float(model(input_ids=given, labels=labels).loss) * (len(completion) + 1)
        count += len(completion) + 1
    assert nats / count == pytest.approx(losses[12], rel=1e-4)


def test_what_was_made_is_trained_and_evaluated_by_the_runs_name(lab: Any, files: Path) -> None:
    run = tune(lab, "sft", files, steps="2")
    assert finished(str(run), 2, FinetuneResult) is not None
    with lab.prefect():
        config = with_made_model(read_config(SftConfig, file=None, overrides={"policy": run.name}), str(run.parent))
    assert config.policy.model == str(run / "model")
    assert lab.evaluate(policy=run.name, problems=str(lab.problems), held_out="4", samples="2").problems == 4
    trained = lab.train(policy=run.name, steps="1", held_out="0")
    saved = Path(trained.run)
    assert (saved / "weights").is_dir()
    assert f"model: {run / 'model'}" in (saved / "config.yaml").read_text()
    again = tune(lab, "dpo", files, policy=run.name, steps="1")
    assert (again / "model" / "model.safetensors").is_file()


@pytest.mark.parametrize("method", ["sft", "dpo", "reward-model"])
def test_a_resumed_run_has_the_bits_of_one_that_was_never_stopped(lab: Any, files: Path, method: str) -> None:
    whole = tune(lab, method, files, steps="6")
    part = tune(lab, method, files, steps="3")
    assert lab.weights_digest(part, 3) != lab.weights_digest(whole, 6)
    part = tune(lab, method, files, resume=part.name, steps="6")
    assert lab.weights_digest(part, 6) == lab.weights_digest(whole, 6)
    name = f"{method.replace('-', '_')}/loss"
    assert lab.metrics(part, name) == lab.metrics(whole, name)


def test_what_a_resume_does_not_give_is_as_it_was_saved(lab: Any, files: Path) -> None:
    """As of a deployment: the command gives the flow all settings."""
    from flows.sft import dpo

    run = tune(lab, "dpo", files, steps="1", beta="0.3")
    before = yaml.safe_load((run / "finetune.yaml").read_text())
    with lab.prefect():
        dpo(DpoConfig(steps=2), run.name)
    assert json.loads((run / "result.json").read_text())["steps"] == 2
    assert yaml.safe_load((run / "finetune.yaml").read_text()) == {**before, "steps": 2}
    with lab.prefect(), pytest.raises(OptionError, match=r"cannot be resumed with beta: saved 0.3, now 0.2"):
        dpo(DpoConfig(steps=3, beta=0.2), run.name)


def test_a_policy_comes_to_prefer_what_is_chosen(lab: Any, files: Path) -> None:
    run = tune(lab, "dpo", files, steps="12")
    before, after = (json.loads((run / "result.json").read_text())[when] for when in ("before", "after"))
    assert before["dpo/held_out_loss"] == pytest.approx(np.log(2), abs=1e-5)
    assert before["dpo/held_out_margin"] == pytest.approx(0, abs=1e-5)
    assert after["dpo/held_out_accuracy"] == 1.0
    assert after["dpo/held_out_loss"] < 0.6
    assert after["dpo/held_out_chosen_reward"] > after["dpo/held_out_rejected_reward"]


def test_adapters_are_compared_with_their_base_and_merged(lab: Any, files: Path) -> None:
    run = tune(lab, "dpo", files, steps="8", policy__lora="4", optimizer__lr="5e-3")
    before, after = (json.loads((run / "result.json").read_text())[when] for when in ("before", "after"))
    assert before["dpo/held_out_margin"] == pytest.approx(0, abs=1e-5)
    assert after["dpo/held_out_margin"] > 0.2
    start, made = (AutoModelForCausalLM.from_pretrained(path).state_dict() for path in (lab.policy, run / "model"))
    assert start.keys() == made.keys()
    changed = {name for name in start if not torch.equal(start[name], made[name])}
    assert changed
    assert all("_proj" in name for name in changed)


def test_a_reward_model_tells_the_chosen_from_the_rejected(lab: Any, files: Path) -> None:
    run = tune(lab, "reward-model", files, steps="15")
    after = json.loads((run / "result.json").read_text())["after"]
    assert after["reward_model/held_out_accuracy"] == 1.0
    model = AutoModelForSequenceClassification.from_pretrained(run / "model")
    tokenizer = AutoTokenizer.from_pretrained(run / "model")

    def reward(text: str) -> float:
        ids = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
        return float(model(input_ids=torch.tensor([ids])).logits)

    assert reward("add 4 and 22.\n4 + 22") > reward("add 4 and 22.\n4 * 22") + 1
    with pytest.raises(ValueError, match="is a reward model, which generates nothing"):
        with_made_model(read_config(SftConfig, file=None, overrides={"policy": run.name}), str(run.parent))


def test_a_trainer_that_is_killed_costs_a_step(lab: Any, files: Path) -> None:
    whole, name = tune(lab, "sft", files, steps="8"), lab.new_name()
    killed = []

    def kill() -> None:
        log = lab.run_folder(name) / "metrics.jsonl"
        until(lambda: log.exists() and '"step":3' in log.read_text().replace(" ", ""))
        killed.append(lab.worker("trainer")[1])
        os.kill(killed[0], signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    run = tune(lab, "sft", files, steps="8", run=name)
    killer.join()
    assert killed
    assert lab.weights_digest(run, 8) == lab.weights_digest(whole, 8)


def test_what_contradicts_a_run_is_refused(lab: Any, files: Path) -> None:
    run = tune(lab, "sft", files, steps="2")

    def resume(kind: type[FinetuneConfig], **changes: str) -> None:
        resumed_finetune(
            kind, run.name, str(run.parent), lambda base: read_config(kind, file=None, overrides=changes, base=base)
        )

    resume(SftConfig)
    with pytest.raises(OptionError, match=f"{run.name} is a run of rlvf sft"):
        resume(DpoConfig)
    with pytest.raises(OptionError, match="cannot be resumed with batch: saved 8, now 4"):
        resume(SftConfig, batch="4")
    with pytest.raises(OptionError, match="has made 2 already"):
        resume(SftConfig, steps="1")
    with pytest.raises(ValueError, match="exists; go on with it by --resume"):
        tune(lab, "sft", files, run=run.name)
    saved = (files / "shown.jsonl").read_text()
    try:
        (files / "shown.jsonl").write_text(saved.replace("22 - 2", "22 - 3"))
        with pytest.raises(ProblemError, match="are not those that it was trained on"):
            tune(lab, "sft", files, resume=run.name, steps="3")
    finally:
        (files / "shown.jsonl").write_text(saved)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["dpo"], "problems: name a file of examples"),
        (["sft", "--steps", "3"], "steps 3: is of demonstrations, and none are named"),
        (["sft", "--policy", "Qwen/Qwen3-0.6B"], "policy.model 'Qwen/Qwen3-0.6B': name the demonstrations"),
        (["sft", "--problems", "shown.jsonl", "--policy", "./none"], "there is no such folder"),
        (["dpo", "--problems", "shown.jsonl"], "no column 'chosen' among ['question', 'response']"),
        (["sft", "--problems", "same.jsonl"], "same.jsonl: line 2: completion is empty"),
        (["reward-model", "--problems", "same.jsonl"], "same.jsonl: line 1: chosen and rejected are the same, 'b'"),
        (["reward-model", "--problems", "pairs.jsonl", "--policy.lora", "4"], "policy.lora: a reward model is trained"),
        (
            ["reward-model", "--problems", "pairs.jsonl", "--problems.system", "be kind"],
            "problems.system: a reward model is given prompts as they are",
        ),
        (["reward-model", "--problems", "chats.jsonl"], "chats.jsonl:1: has turns before its question"),
        (["dpo", "--problems", "pairs.jsonl", "--held_out", "60"], "pairs.jsonl: cannot hold out 60 of 60"),
        (["verify", "reward-model:r1"], "verifier: a reward model scores on the workers of a cluster"),
        (["dpo", "--resume", "never"], "is not a run on examples: it has no finetune.yaml"),
    ],
)
def test_a_mistake_is_one_line_before_anything_is_started(
    words: list[str],
    said: str,
    files: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    from flows.cli import main

    rows = [{"prompt": "a", "completion": "b", "chosen": "b", "rejected": "b"}, {"prompt": "c", "completion": " "}]
    (files / "same.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    turns = [{"role": role, "content": role[0]} for role in ("user", "assistant", "user")]
    (files / "chats.jsonl").write_text(json.dumps({"prompt": turns, "chosen": "b", "rejected": "c"}) + "\n")
    monkeypatch.chdir(files)
    monkeypatch.setenv("RLVF_HOME", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    lines = capsys.readouterr().err.strip().splitlines()
    assert said in lines[-1]
    assert len(lines) == 1
    assert not list(tmp_path.glob("runs/*/finetune.yaml"))


def test_a_policy_is_trained_by_a_reward_model(lab: Any, files: Path) -> None:
    """Which prefers sums: alone, and beside a program whose pass rate stays its own."""
    judge = tune(lab, "reward-model", files, steps="15")
    alone = lab.train(steps="2", verifier=f"reward-model:{judge.name}", tracking__rollouts_every="1")
    run = Path(alone.run)
    rewards = lab.metrics(run, "reward/mean")
    assert rewards == pytest.approx(lab.metrics(run, "reward/reward_model"), rel=1e-6)
    assert all(lab.metrics(run, "reward/pass_rate")[step] == 0 for step in rewards)
    assert f"name: reward-model:{judge / 'model'}" in (run / "config.yaml").read_text()
    spans = [json.loads(line) for line in (run / "timeline.jsonl").read_text().splitlines() if line]
    assert {span["worker"] for span in spans if span.get("call") == "reward"} == {"generator-0"}
    # the scores are those that transformers finds
    model = AutoModelForSequenceClassification.from_pretrained(judge / "model")
    tokenizer = AutoTokenizer.from_pretrained(judge / "model")
    rows = [json.loads(line) for line in gzip.decompress((run / "rollouts" / "1.jsonl.gz").read_bytes()).splitlines()]
    ended = [row for row in rows if row["tokens"] < 12]  # the others may be cut at that many
    assert ended
    for row in ended[:8]:
        text = tokenizer(f"{row['prompt']}\n{row['completion']}", add_special_tokens=False)["input_ids"]
        found = model(input_ids=torch.tensor([[*text, tokenizer.eos_token_id]])).logits.item()
        assert row["reward"] == pytest.approx(found, abs=1e-4)
        assert row["reason"] == "scored"

    asked = {"verifier__reward_model": judge.name, "verifier__reward_model_weight": "0.5"}
    both = lab.train(steps="2", **asked)
    run = Path(both.run)
    of = {part: lab.metrics(run, f"reward/{part}") for part in ("mean", "program", "reward_model", "pass_rate")}
    for step in (1, 2):
        assert of["mean"][step] == pytest.approx(of["program"][step] + of["reward_model"][step], abs=1e-5)
        assert of["program"][step] == pytest.approx(of["pass_rate"][step])  # the program gives 0 or 1
    assert both.pass_rate_after is not None
    assert 0 < both.pass_rate_after <= 1
    assert lab.train(resume=both.run, steps="3", **asked).steps == 3


def test_what_is_no_reward_model_judges_nothing(lab: Any, files: Path) -> None:
    policy = tune(lab, "sft", files, steps="1")
    for named, said in (
        (policy.name, "is a policy, made by rlvf sft; a reward model is made by rlvf reward-model"),
        ("never", "never: is no run of rlvf reward-model"),
    ):
        with pytest.raises(VerifierError, match=said):
            lab.train(steps="1", verifier=f"reward-model:{named}")
        with pytest.raises(VerifierError, match=said):
            lab.train(steps="1", verifier__reward_model=named)


def test_a_reward_model_without_finite_scores_is_named_before_a_run(lab: Any, files: Path, tmp_path: Path) -> None:
    judge = tune(lab, "reward-model", files, steps="1")
    with store.read_folder(str(judge / "model")) as folder:
        store.copy_folder(folder, tmp_path, str(judge))
        meta = folder.manifest.meta
    weights = load_file(tmp_path / "model.safetensors")
    weights["score.weight"].fill_(float("nan"))
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    store.write_folder(str(judge / "model"), tmp_path, meta=meta, flat=True)
    name = lab.new_name()
    with pytest.raises(BrokenRewardModelError, match=r"^reward model .*/model gives scores that are not finite: "):
        lab.train(run=name, steps="1", verifier=f"reward-model:{judge.name}")
    assert not (lab.run_folder(name) / "config.yaml").exists()
