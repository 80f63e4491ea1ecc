"""Whole runs: real workers, a real Prefect server, MLflow on SQLite."""

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from signal import SIGCONT, SIGSTOP
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

from flows.report.result import TrainResult, finished
from infra.storage import place as places
from infra.storage import store
from infra.weights.publisher import Publisher
from infra.weights.version import SyncConfig
from rl.config import PolicyConfig, SamplingConfig
from rl.records import Problem
from tasks.batch.collection import Collection
from tasks.batch.lease import Lease
from tasks.calls.generator import BrokenPolicyError, Generator
from tests.processes import until

EACH_STEP = [
    "reward/mean",
    "reward/pass_rate",
    "groups/used",
    "groups/zero_variance",
    "completion/tokens_mean",
    "completion/truncated",
    "loss/policy",
    "policy/entropy",
    "policy/mismatch_kl",
    "policy/clip_fraction",
    "policy/grad_norm",
    "staleness/mean",
    "staleness/max",
    "perf/step_seconds",
    "perf/rollouts_per_second",
    "perf/generated_tokens_per_second",
    "perf/trainer_busy",
    "perf/generator_busy",
    "perf/overhead_fraction",
]
LOAD = """
import sys
from transformers import AutoModelForCausalLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
model = AutoModelForCausalLM.from_pretrained(sys.argv[1])
tokens = tokenizer("add 3 and 4" + chr(10), return_tensors="pt")["input_ids"]
model.generate(tokens, attention_mask=tokens * 0 + 1, max_new_tokens=2, do_sample=False)
"""


@pytest.mark.slow(always=True)
def test_the_command_trains_and_leaves_a_run_that_others_can_read(lab: Any, tmp_path: Path) -> None:
    began = time.monotonic()
    reward = tmp_path / "parity.py"  # of which every group has some, whatever so short a warm-up has taught
    reward.write_text("def reward(problem, completion):\n    return len(completion) % 2\n")
    # a cluster of its own, a warm-up of its own
    options = lab.options(
        run="whole",
        steps="3",
        policy=None,
        verifier=f"{reward}:reward",
        cluster__scheduler=None,
        cluster__threads="1",
        warm_up__steps="20",
        warm_up__batch="8",
        tracking__samples_every="2",
        tracking__report="true",
    )
    with lab.command("train", "--json", options=options) as command:
        code, out, err = command.finish()
        assert code == 0, err
        until(lambda: not command.alive())
    run = lab.run_folder("whole")

    figures = json.loads(out)  # one object, nothing else
    assert figures["run"] == str(run)
    assert figures["steps"] == 3
    assert 0 <= figures["pass_rate_before"] <= 1
    assert 0 <= figures["pass_rate_after"] <= 1
    assert figures["rollouts_per_second"] > 0
    assert 0 < figures["seconds"] < time.monotonic() - began
    assert sum(figures["stages"].values()) == pytest.approx(1, abs=0.05)
    assert "warm-up" in err
    assert "held-out, v3" in err

    assert yaml.safe_load((run / "config.yaml").read_text())["warm_up"]["steps"] == 20
    assert store.versions(str(run / "state")) == [2, 3]
    assert store.versions(str(run / "weights"), prefix="v") == [0, 1, 2, 3]
    assert (run / "reward.png").read_bytes().startswith(b"\x89PNG")
    assert not list(run.glob("**/.*"))
    reader = subprocess.run([sys.executable, "-c", LOAD, str(run / "model")], capture_output=True, text=True)
    assert reader.returncode == 0, reader.stderr
    for name in EACH_STEP:
        assert list(lab.metrics(run, name)) == [1, 2, 3], name
    for name in ("eval/pass_at_1", "eval/sampled", "eval/pass_at_k"):
        assert list(lab.metrics(run, name)) == [0, 3], name

    mlflow, logged = lab.mlflow(run)
    assert logged.info.status == "FINISHED"
    assert mlflow.get_experiment(logged.info.experiment_id).name == "sums"
    for name in EACH_STEP:
        assert [point.step for point in mlflow.get_metric_history(logged.info.run_id, name)] == [1, 2, 3], name
    assert logged.data.params["batch.prompts"] == "4"
    assert logged.data.params["warm_up.steps"] == "20"
    assert logged.data.params["algorithm.name"] == "reinforce"
    assert len(mlflow.list_artifacts(logged.info.run_id, "pictures")) == 2  # of the reward, and of a step's calls
    (table,) = mlflow.list_artifacts(logged.info.run_id, "samples")
    shown = json.loads(Path(mlflow.download_artifacts(logged.info.run_id, table.path, str(tmp_path))).read_text())
    assert {"prompt", "completion", "reward", "reason"} <= set(shown["columns"])
    assert len(shown["data"]) in range(4, 9)

    ended = json.loads((run / "result.json").read_text())
    assert (ended["picture"], ended["report"]) == (str(run / "reward.png"), str(run / "report.html"))
    assert (run / "report.html").exists()
    with lab.prefect() as prefect:
        flow_run = prefect.read_flow_run(ended["flow_run_id"])
        names = task_runs(prefect, flow_run.id)
    assert flow_run.state.is_completed()
    wanted = {f"{task} {step}" for step in range(3) for task in ("generate", "verify", "update")}
    assert wanted | {f"publish {step}" for step in (1, 2, 3)} <= set(names)


def task_runs(prefect: Any, flow_run: Any) -> dict[str, str]:
    """The task runs of a flow run: their states by name."""
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId

    runs = prefect.read_task_runs(flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=[flow_run])))
    return {run.name: run.state_name for run in runs}


@pytest.mark.parametrize("staleness", [1, *(pytest.param(each, marks=pytest.mark.slow) for each in (0, 2))])
def test_a_policy_is_never_staler_than_asked(lab: Any, staleness: int) -> None:
    result = lab.train(steps="4", staleness=str(staleness))
    run = Path(result.run)
    assert finished(result.run, 4, TrainResult) == result
    ages = lab.metrics(run, "staleness/max")
    assert list(ages) == [1, 2, 3, 4]
    assert max(ages.values()) <= staleness
    used = lab.metrics(run, "groups/used")
    assert sum(used.values()) > 4  # this policy has something to learn
    mismatch = [kl for step, kl in lab.metrics(run, "policy/mismatch_kl").items() if used[step]]
    if staleness == 0:
        assert max(map(abs, mismatch)) < 1e-6
        assert set(lab.metrics(run, "staleness/mean").values()) == {0}
    else:
        assert max(ages.values()) >= 1  # it does run ahead
        assert max(mismatch) > 1e-6


def test_weights_that_break_on_the_way_are_no_policy_that_solves_nothing(lab: Any, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(lab.policy, broken)
    tensors = load_file(broken / "model.safetensors")
    tensors["model.norm.weight"].fill_(torch.nan)
    save_file(tensors, broken / "model.safetensors", metadata={"format": "pt"})
    publisher = Publisher(str(tmp_path / "run"), SyncConfig(), window=1, files=lab.policy)
    versions = [
        publisher.publish(step, load_file(folder / "model.safetensors")).version
        for step, folder in enumerate([lab.policy, broken])
    ]
    publisher.close()
    generator = Generator(PolicyConfig(device="cpu"), SamplingConfig(max_tokens=4), samples=2, seed=0)
    problems = [Problem("add 3 and 4", "3 + 4", "")]
    assert generator.generate(versions[0], 0, [0], problems).generated_tokens > 0
    with pytest.raises(BrokenPolicyError, match=r"v1 .* log-probs that are not finite"):
        generator.generate(versions[1], 1, [0], problems)


@pytest.mark.slow
def test_a_run_learns(lab: Any) -> None:
    result = lab.train(steps="12", staleness="0", optimizer__lr="1e-3", batch__prompts="8")
    assert result.sampled_after > result.sampled_before + 0.1
    assert result.lost == {}


@pytest.mark.slow
def test_grpo_trains_too(lab: Any) -> None:
    result = lab.train(steps="2", loss__name="grpo")
    assert lab.weights_digest(Path(result.run), 2) != lab.weights_digest(Path(result.run), 1)


@pytest.mark.slow
def test_a_batch_without_variance_advances_the_step_and_says_so(
    lab: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    impossible = tmp_path / "impossible.csv"
    rows = [f"{10**9 + i},add {i} and 1" for i in range(40)]
    impossible.write_text("\n".join(["python_expression,natural_language", *rows]) + "\n")
    result = lab.train(steps="2", staleness="0", problems=str(impossible))
    run = Path(result.run)
    assert lab.metrics(run, "groups/used") == {1: 0, 2: 0}
    assert lab.metrics(run, "groups/generated") == {1: 8, 2: 8}  # replaced up to the bound
    assert "step 1: no group has rewards that differ" in capsys.readouterr().err
    assert result.steps == 2
    assert (run / "model" / "model.safetensors").read_bytes() == (lab.policy / "model.safetensors").read_bytes()
    assert lab.metrics(run, "sync/changed") == {0: 1, 1: 0, 2: 0}


@pytest.mark.slow
@pytest.mark.parametrize("place", ["file", "s3"])
def test_a_run_may_lie_anywhere(lab: Any, place: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    base = request.getfixturevalue("s3") if place == "s3" else f"file://{tmp_path}"
    uri = f"{base}/deep/{place}-run"
    result = lab.train(run=uri, steps="2")
    assert result.run == uri
    assert result.checkpoint == f"{uri}/model"
    assert store.versions(f"{uri}/state") == [1, 2]
    with store.read_folder(f"{uri}/model") as folder:
        assert (folder.path / "model.safetensors").exists()
    assert lab.train(resume=uri, run=uri, steps="3").steps == 3
    local = tmp_path / "deep" / "file-run" if place == "file" else lab.record_folder(uri)
    assert list(lab.metrics(local, "reward/mean")) == [1, 2, 3]
    assert (local / "reward.png").exists()


@pytest.mark.slow
def test_runs_and_the_warm_up_lie_on_the_storage_that_the_environment_names(
    lab: Any, s3: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLVF_STORAGE", f"{s3}/shared")
    options = {"warm_up__steps": "2", "warm_up__batch": "4", "steps": "1", "policy": "tiny"}
    result = lab.train(run="stored", **options)
    assert result.run == f"{s3}/shared/runs/stored"
    assert store.versions(f"{s3}/shared/runs/stored/weights", prefix="v")[-1] == 1
    assert places.exists(f"{s3}/shared/warmup")
    assert lab.metrics(lab.record_folder(result.run), "reward/mean").keys() == {1}  # a copy stays at home
    assert lab.evaluate(policy="stored", problems=str(lab.problems)).step == 1  # a name is looked up there


@pytest.mark.slow
def test_two_generators_make_the_run_that_one_makes(lab: Any) -> None:
    alone = lab.train(steps="2", staleness="0")
    both = lab.train(steps="2", staleness="0", cluster__scheduler=None, cluster__generators="2", cluster__threads="1")
    assert lab.weights_digest(Path(both.run), 2) == lab.weights_digest(Path(alone.run), 2)


@pytest.mark.slow
def test_a_run_that_diverges_is_stopped_with_its_weights_intact(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from flows.run.diverged import DivergedError

    sampled: list[int] = []
    draws = Collection.draws
    _, pid = lab.worker("trainer")

    def counted(self: Collection) -> Iterator[list[Lease]]:
        """Five batches are sampled from version 0, the first update of which ruins the weights."""
        yield from draws(self)
        sampled.append(self.step)
        if len(sampled) == 1:
            os.kill(pid, SIGSTOP)
        elif len(sampled) == 5:
            os.kill(pid, SIGCONT)

    monkeypatch.setattr(Collection, "draws", counted)
    name = lab.new_name()
    run = lab.run_folder(name)
    refused = r"3 updates in a row were refused: the \w+ of update 4 is not finite; low"
    try:
        with pytest.raises(DivergedError, match=refused):
            lab.train(run=name, steps="20", staleness="4", optimizer__lr="1e30", optimizer__warmup_steps="0")
    finally:
        os.kill(pid, SIGCONT)
    # the first update was finite, the others changed nothing
    digests = {lab.weights_digest(run, step) for step in store.versions(str(run / "state"))}
    assert len(digests) == 1
    assert all(value.isfinite().all() for value in load_file(run / "state" / "4" / "model.safetensors").values())
    _, logged = lab.mlflow(run)
    assert logged.info.status == "FAILED"
    assert torch.isnan(torch.tensor(lab.metrics(run, "policy/grad_norm")[4]))


@pytest.mark.slow
def test_a_run_goes_on_with_the_learning_rate_that_it_was_told_to_lower(lab: Any) -> None:
    run = Path(lab.train(steps="1", optimizer__warmup_steps="0", optimizer__lr="1e-3").run)
    words = {"optimizer__warmup_steps": "0", "optimizer__lr": "1e-14"}
    assert lab.train(resume=str(run), run=str(run), steps="2", **words).steps == 2
    changed = lab.metrics(run, "sync/changed")
    assert changed[1] > 0.5
    assert changed[2] < 1e-4  # an update that is too small for almost any weight
    assert yaml.safe_load((run / "config.yaml").read_text())["optimizer"]["lr"] == 1e-14


@pytest.mark.slow
def test_the_learning_rate_decays_where_that_is_asked_for(lab: Any) -> None:
    options = {"steps": "2", "staleness": "0", "optimizer__lr": "1e-3"}
    runs = [Path(lab.train(**options, optimizer__decay=decay).run) for decay in ("none", "cosine")]
    steady, falling = ([lab.weights_digest(run, step) for step in (1, 2)] for run in runs)
    assert [one == other for one, other in zip(steady, falling, strict=True)] == [True, False]  # the first takes it all
