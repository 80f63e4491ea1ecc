"""Runs and evaluations with a verifier that fails, hangs or does harm."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.commands.train import RESULTS
from flows.config import TrainConfig
from flows.options.reading import read_config
from flows.report.charts import figures
from flows.report.summary import summary
from flows.start.runs import Run
from infra.runs.record import read_record
from rl.judging import BrokenVerifierError
from rl.verifiers.spec import VerifierError

HARMFUL = """
import os
def reward(problem, completion):
    harm, held = problem.extra["harm"] if completion else None, []
    while harm == "loops":
        pass
    while harm == "forks":
        os.fork()
    while harm == "eats memory":
        held.append(bytearray(2**24))
    return float(sum(map(ord, completion)) % 2)
"""


RAISES = """
def reward(problem, completion):
    if completion and sum(map(ord, completion)) % 2:
        raise ValueError("cannot read this")
    return float(len(completion) % 3 == 0)
"""


def test_a_run_whose_verifier_always_fails_stops_with_its_message(lab: Any, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("def reward(problem, completion):\n    return 1 / 0\n")
    with pytest.raises(VerifierError, match=r"^broken\.py:2: ZeroDivisionError.*tried on sums\.csv"):
        lab.train(steps="2", verifier=f"{tmp_path}/broken.py:reward")


@pytest.mark.slow
def test_a_run_goes_on_whose_verifier_loops_forks_and_eats_memory(lab: Any, tmp_path: Path) -> None:
    (tmp_path / "harmful.py").write_text(HARMFUL)
    harms = {"add 1 and 1": "loops", "add 2 and 2": "forks", "add 3 and 3": "eats memory"}
    rows = [{"prompt": prompt, "harm": harms.get(prompt)} for prompt in (*harms, *(f"add 4 and {n}" for n in range(5)))]
    (tmp_path / "sums.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    options = {"batch.prompts": "8", "batch.oversample": "1", "verifier.seconds": "0.5", "verifier.memory_mb": "256"}
    names = {"problems": f"{tmp_path}/sums.jsonl", "verifier": f"{tmp_path}/harmful.py:reward"}
    result = lab.train(steps="2", held_out="0", staleness="0", **names, **options)
    assert lab.metrics(Path(result.run), "reward/error_rate") == {1: 3 / 8, 2: 3 / 8}
    assert sum(lab.metrics(Path(result.run), "groups/used").values()) > 0


@pytest.mark.slow
def test_what_could_not_be_judged_is_said_wherever_rewards_are(
    lab: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "raises.py").write_text(RAISES)
    result = lab.train(steps="5", verifier=f"{tmp_path}/raises.py:reward")
    rates = lab.metrics(Path(result.run), "reward/error_rate").values()
    assert min(rates) > 0.2
    assert result.error_rate_after == lab.metrics(Path(result.run), "eval/error_rate")[5] > 0.2
    assert "error_rate_after" in RESULTS  # of what --json prints
    said = capsys.readouterr().err
    assert said.count("hint: ") == said.count("% of the completions could not be judged. They teach nothing") == 1
    assert f"{result.error_rate_after:.1%} could not be judged" in said
    run = Run(result.run, read_config(TrainConfig, file=None, overrides={}), resumed=True)
    assert f"not judged  {result.error_rate_after:.1%} of these completions" in summary(run, result, 1.0)
    record = read_record(result.run, Path(result.run))
    assert [value for what, value, _ in figures(record, {}) if what == "not judged"]


@pytest.mark.slow
def test_an_evaluation_whose_verifier_hangs_is_stopped(
    lab: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "slow.py").write_text("def reward(problem, completion):\n    while completion: pass\n    return 1\n")
    hangs = r"^the evaluation was stopped: slow\.py: reward took longer than 0\.2 s 16 times in a row, on several "
    with pytest.raises(BrokenVerifierError, match=hangs):
        lab.train(steps="1", verifier=f"{tmp_path}/slow.py:reward", **{"verifier.seconds": "0.2"})
    assert "completions could not be judged so far: slow.py: reward took longer than 0.2 s" in capsys.readouterr().err


@pytest.mark.slow
def test_one_problem_on_which_its_verifier_hangs_ends_no_evaluation(lab: Any, tmp_path: Path) -> None:
    (tmp_path / "hang.py").write_text(
        "def reward(problem, completion):\n    while problem.extra['hangs']: pass\n    return 1\n"
    )
    rows = [{"prompt": f"add {n} and 1", "hangs": n == 0} for n in range(4)]
    (tmp_path / "few.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    found = lab.evaluate(
        policy=str(lab.policy), problems=f"{tmp_path}/few.jsonl", verifier=f"{tmp_path}/hang.py:reward",
        verifier__seconds="0.2", samples="32",
    )  # fmt: skip
    assert (found.problems, found.reward, found.reward_sampled, found.error_rate) == (4, 1, 1, 0.25)
