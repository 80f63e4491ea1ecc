"""Evaluations against an independent computation: transformers' own `generate`, one problem at a time."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from flows.runs import existing_run
from infra.runs.checkpoints import NotARun

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
    found = lab.evaluate(policy=run.name, problems=str(lab.problems), samples="2")
    assert (found.step, found.problems, found.greedy) == (3, 100, greedy)
    mlflow, logged = lab.mlflow(run)
    assert logged.info.status == "FINISHED"
    expected = {"pass_at_1": found.greedy, "sampled": found.sampled, "pass_at_2": found.pass_at_k}
    for name, figure in expected.items():
        points = mlflow.get_metric_history(logged.info.run_id, f"eval/sums/{name}")
        assert [(point.step, point.value) for point in points] == [(3, figure)]
    # the part that training kept out is what training evaluated on
    kept = lab.evaluate(policy=run.name, problems=str(lab.problems), held_out="16", samples="4")
    assert kept.problems == 16
    assert kept.greedy == result.pass_rate_after


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


def points(lab: Any, run: Path, metric: str) -> list[Any]:
    mlflow, logged = lab.mlflow(run)
    return list(mlflow.get_metric_history(logged.info.run_id, metric))


def test_there_must_be_a_run_to_be_the_newest(tmp_path: Path) -> None:
    with pytest.raises(NotARun, match=r"there is no run at .* yet"):
        existing_run("newest", str(tmp_path))
