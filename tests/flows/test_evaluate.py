"""Evaluations against an independent computation: transformers' own `generate`, one problem at a time."""

import json
import os
import shutil
import socket
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM, AutoTokenizer

from flows.config import EvalConfig, TrainConfig
from flows.evaluate import evaluation_uri, keep, kept
from flows.options.reading import read_config
from flows.run.plans import digest_of
from flows.start.as_trained import asked_of_model
from flows.start.runs import Run, existing_run
from infra.runs.checkpoints import NotARun
from infra.storage import store
from infra.storage.typed import DamagedError
from infra.weights.version import PolicyVersion
from rl.problems.tables import ProblemError
from rl.verifiers.spec import VerifierSpec
from tasks.evaluate import Evaluation
from tasks.verify import check_verifiers

pytestmark = pytest.mark.slow

SAMPLES = 16


def solved(policy: Path, problems: Path, samples: int = 0) -> torch.Tensor:
    """[P] whether each problem is solved greedily, or [P, samples] by sampling."""
    tokenizer = AutoTokenizer.from_pretrained(policy)
    model = AutoModelForCausalLM.from_pretrained(policy).eval()
    torch.manual_seed(0)
    how: dict[str, Any] = {"do_sample": False}
    if samples:
        how = {"do_sample": True, "num_return_sequences": samples, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    rows = []
    for line in problems.read_text().splitlines()[1:]:
        expression, text = line.split(",")
        tokens = tokenizer(text + "\n", return_tensors="pt")["input_ids"]
        made = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_new_tokens=12, **how)
        answers = tokenizer.batch_decode(made[:, tokens.shape[1] :], skip_special_tokens=True)
        rows.append([value(answer) == value(expression) for answer in answers])
    return torch.tensor(rows) if samples else torch.tensor(rows)[:, 0]


def value(expression: str) -> int | None:
    """Of a sum; None for anything else."""
    numbers = [number.strip() for number in expression.split("+")]
    return sum(map(int, numbers)) if all(number.isdigit() for number in numbers) else None


@pytest.fixture(scope="module")
def independent(lab: Any) -> tuple[float, float, float]:
    """Greedy pass@1, sampled pass@1 and pass@k of the half-right policy."""
    with torch.inference_mode():
        greedy = solved(lab.policy, lab.problems)
        sampled = solved(lab.policy, lab.problems, SAMPLES)
    return float(greedy.double().mean()), float(sampled.double().mean()), float(sampled.any(1).double().mean())


def test_the_command_evaluates_a_model(lab: Any, independent: tuple[float, float, float]) -> None:
    options = {
        "policy": str(lab.policy),
        "problems": str(lab.problems),
        "samples": str(SAMPLES),
        "sampling.max_tokens": "12",
        "cluster.scheduler": lab.client.scheduler.address,
    }
    with lab.command("eval", "--json", options=options) as command:
        code, out, err = command.finish()
    assert code == 0, err
    found = json.loads(out)
    greedy, sampled, pass_at_k = independent
    assert found["problems"] == 100
    assert found["greedy"] == greedy
    assert 0.2 < greedy < 1  # else this would show little
    # the spread of each mean over 1,600 samples is about 0.01
    assert found["sampled"] == pytest.approx(sampled, abs=0.05)
    assert found["pass_at_k"] == pytest.approx(pass_at_k, abs=0.15)
    assert found["k"] == SAMPLES


def test_tiny_is_the_warmed_up_policy(lab: Any, independent: tuple[float, float, float]) -> None:
    found = lab.evaluate(policy="tiny", problems=str(lab.problems), samples="4")
    assert found.greedy == independent[0]
    assert found.sampled <= found.pass_at_k <= 1
    assert found == lab.evaluate(policy="tiny", problems=str(lab.problems), samples="4")


def test_a_run_is_evaluated_at_its_newest_version_and_logs_it(lab: Any) -> None:
    result = lab.train(steps="3", optimizer__lr="1e-3")
    run = Path(result.run)
    with torch.inference_mode():
        greedy = float(solved(run / "model", lab.problems).double().mean())
    # as it was trained, and on what training kept out
    kept = lab.evaluate(policy=run.name)
    assert (kept.step, kept.problems, kept.k) == (3, 16, 4)
    assert (kept.greedy, kept.sampled) == (result.pass_rate_after, result.sampled_after)
    assert (kept.reward, kept.reward_sampled) == (result.reward_after, result.reward_sampled_after)
    assert lab.evaluate(policy=run.name, problems=str(lab.problems)) == kept
    found = lab.evaluate(policy=run.name, held_out="0", samples="2")
    assert (found.step, found.problems, found.greedy, found.k) == (3, 100, greedy, 2)
    _, logged = lab.mlflow(run)
    assert logged.info.status == "FINISHED"
    # each is there, of the same version; what was asked otherwise is no point of the same curve
    (other,) = {name.split("/")[1] for name in logged.data.metrics if name.startswith("eval/sums-")}
    for name in ("pass_at_1", "reward", "pass_at_k"):
        for of, values in (("sums", [kept.figures()[name]] * 2), (other, [found.figures()[name]])):
            logged_as = points(lab, run, f"eval/{of}/{name}")
            assert [(point.step, point.value) for point in logged_as] == [(3, value) for value in values]


def test_a_run_is_judged_as_it_was_trained_and_what_differs_is_said(
    lab: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "half.py").write_text("def reward(problem, completion):\n    return 0.5\n")
    options = {"verifier": f"{tmp_path}/half.py:reward", "sampling__temperature": "0.7", "seed": "3"}
    result = lab.train(steps="1", **options)
    name = Path(result.run).name
    capsys.readouterr()
    found = lab.evaluate(policy=name, sampling__temperature="0.9")
    assert (found.reward, found.reward_sampled, found.greedy) == (0.5, 0.5, 0)
    said = capsys.readouterr().err
    assert f"{name} was trained with sampling.temperature 0.7, here 0.9" in said
    assert f"16 problems of set sums; 84 that {name} trains on are left out (--held_out 0 takes all)" in said
    assert f"judged by {tmp_path}/half.py:reward, at most 12 tokens, temperature 0.9, 4 samples" in said
    # the scheduled evaluation gives nothing but the run
    from flows.evaluate import evaluate_policy

    deployed = yaml.safe_load(Path("prefect.yaml").read_text())["deployments"][-1]["parameters"]["config"]
    cluster = {"cluster": {"scheduler": lab.client.scheduler.address}}
    with lab.prefect():
        scheduled = evaluate_policy({**deployed, **cluster, "policy": {"model": name}})
    assert (scheduled.reward, scheduled.problems, scheduled.k) == (0.5, 16, 4)


def test_the_newest_run_is_evaluated_once_a_version(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    run = Path(lab.train(steps="1").run)
    asked = {"policy": "newest", "problems": str(lab.problems), "samples": "2", "again": "false"}
    found = lab.evaluate(**asked)
    assert [point.step for point in points(lab, run, "eval/sums/sampled")] == [1]
    with monkeypatch.context() as patch:
        patch.setattr("flows.evaluate.evaluate", lambda *_: pytest.fail("evaluated again"))
        assert lab.evaluate(**asked) == found
    other = lab.evaluate(**{**asked, "samples": "1"})  # another question
    assert other.greedy == found.greedy
    lab.train(resume=str(run), steps="2")
    assert lab.evaluate(**asked).step == 2


def test_a_run_whose_problem_file_was_edited_is_not_resumed_and_evaluated_on_none_that_it_was_trained_on(
    lab: Any, tmp_path: Path
) -> None:
    file = tmp_path / "edited.csv"
    head, *rows = lab.problems.read_text().splitlines(keepends=True)
    file.write_text("".join([head, *rows[:50]]))
    options = {"problems": str(file), "held_out": None}
    run = Path(lab.train(steps="1", **options).run)
    kept = (run / "problems.json").read_bytes()
    file.write_text("".join([head, *rows]))
    with pytest.raises(
        ProblemError, match=r"edited\.csv are not those .*\(50 then, 100 now\); restore the file, or start"
    ):
        lab.train(resume=str(run), steps="2", **options)
    with lab.command("train", options={**lab.options(steps="2", **options), "resume": str(run)}) as command:
        code, _, err = command.finish()
    assert code != 0
    assert err.count("\n") == 1
    assert "(50 then, 100 now); restore the file, or start a new run" in err
    assert lab.evaluate(policy=run.name).problems == 10 + 50
    file.write_text("".join([head, *rows[:50]]))
    assert lab.train(resume=str(run), steps="2", **options).steps == 2
    assert (run / "problems.json").read_bytes() == kept


def points(lab: Any, run: Path, metric: str) -> list[Any]:
    mlflow, logged = lab.mlflow(run)
    return list(mlflow.get_metric_history(logged.info.run_id, metric))


def test_what_a_run_names_after_it_was_trusted_is_asked_nothing(
    lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows import evaluate as flow

    uri = tmp_path / "shared" / "run"
    lab.train(run=str(uri), steps="1")
    harmless = (uri / "config.yaml").read_text()
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", "me")
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", "pa55word")
    with socket.create_server(("127.0.0.1", 0)) as stranger:

        def judged(*given: Any) -> list[str]:
            settings = yaml.safe_load(harmless)
            settings["tracking"]["uri"] = f"http://127.0.0.1:{stranger.getsockname()[1]}"
            (uri / "config.yaml").write_text(yaml.safe_dump(settings))
            return check_verifiers(*given)

        monkeypatch.setattr(flow, "check_verifiers", judged)  # the first thing after the notes are said
        assert lab.evaluate(policy=str(uri), samples="1").step == 1
        stranger.settimeout(0)
        with pytest.raises(BlockingIOError):
            stranger.accept()
    assert yaml.safe_load((uri / "config.yaml").read_text())["tracking"]["uri"] is not None


def test_there_must_be_a_run_to_be_the_newest(tmp_path: Path) -> None:
    with pytest.raises(NotARun, match=r"there is no run at .* yet"):
        existing_run("newest", str(tmp_path))


def test_a_run_that_failed_before_its_first_step_is_not_the_newest(tmp_path: Path) -> None:
    for moment, (name, steps) in enumerate({"first": (0, 1, 2), "failed": (0,), "not-begun": ()}.items()):
        config = tmp_path / name / "config.yaml"
        config.parent.mkdir()
        config.write_text("{}")
        os.utime(config, (moment, moment))
        for step in steps:
            made = tmp_path / "made"
            made.mkdir()
            (made / "weights").write_text(name)
            store.write_folder(str(tmp_path / name / "weights" / f"v{step}"), made, move=True)
    assert existing_run("newest", str(tmp_path)) == str(tmp_path / "first")
    shutil.rmtree(tmp_path / "first")
    with pytest.raises(NotARun, match="has made a step yet"):
        existing_run("newest", str(tmp_path))


@pytest.mark.parametrize("content", ["", "null", "[]", '{"step": 1}', '{"step": "x"}', "{"])
def test_a_damaged_evaluation_is_named_with_what_to_do(tmp_path: Path, content: str) -> None:
    run, config = Run(str(tmp_path / "run"), TrainConfig(), resumed=True), EvalConfig()
    uri = evaluation_uri(run, PolicyVersion(step=1, uri="", digest=""), config, asked_of_model(config).problems)
    assert kept(uri) is None
    made = Evaluation(step=1, problems=4, greedy=0.5, sampled=0.25, pass_at_k=0.75, k=4, sets={"a": {"reward": 1.0}})
    keep(uri, made)
    again = kept(uri)
    assert again is not None
    assert (again.step, again.sets) == (1, made.sets)
    Path(uri).write_text(content)
    with pytest.raises(DamagedError, match=r"evaluations/v1-.*\.json is damaged \(.+\); remove it, and the version is"):
        kept(uri)


def test_an_earlier_evaluation_is_that_of_what_decides_its_figures(tmp_path: Path) -> None:
    run = Run(str(tmp_path / "run"), TrainConfig(), resumed=True)
    file, reward = tmp_path / "sums.jsonl", tmp_path / "my_reward.py"
    row = {"prompt": "add 1 to 2", "target": "3", "steps": 1}
    found: list[str] = []

    def look(step: int = 1, digest: str = "a", **options: str) -> None:
        named = {"problems": str(file), "verifier": f"{reward}:reward", **options}
        overrides = {name.replace("__", "."): value for name, value in named.items()}
        config = read_config(EvalConfig, file=None, overrides=overrides)
        found.append(evaluation_uri(run, PolicyVersion(step, "", digest), config, asked_of_model(config).problems))

    file.write_text(json.dumps(row) + "\n")
    reward.write_text("def reward(problem, completion):\n    return 1.0\n")
    for _ in range(2):
        look()
    look(policy__device="cpu", again="false", tracking__report="false")
    assert len(set(found)) == 1
    look(step=2)
    look(digest="b")
    for name, value in {"policy__dtype": "float16", "seed": "1", "samples": "2", "sampling__stop": "[x]"}.items():
        look(**{name: value})
    file.write_text(json.dumps({**row, "steps": 2}) + "\n")
    look()
    reward.write_text("def reward(problem, completion):\n    return 0.5\n")
    look()
    assert len(set(found)) == 9


def test_figures_of_a_verifier_of_ours_are_those_of_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    def digest(**options: str) -> str:
        overrides = {name.replace("__", "."): value for name, value in options.items()}
        config = read_config(EvalConfig, file=None, overrides={"problems": "arithmetic", **overrides})
        return digest_of(asked_of_model(config).problems, config.samples)

    now = digest()
    assert now == digest() == digest(verifier__truncated="zero")  # as it is for one of ours
    others = {digest(verifier__truncated="judged"), digest(verifier__timeout_reward="0.0")}
    monkeypatch.setattr(VerifierSpec, "source", "of another version")
    assert len({now, *others, digest()}) == 4
