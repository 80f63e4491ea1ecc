"""`rlvf sample`: what a run's model says."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from flows.commands.sample import _asked
from flows.config import TrainConfig
from flows.options.reading import read_config
from flows.start.runs import Run
from rl.config import PolicyConfig, SamplingConfig
from rl.loading.policy import load_policy
from rl.records import Instructions, Problem
from rl.sampling.sampler import sample
from rl.verifiers.table import declared

PROMPTS = ["add 1 and 2", "take the sum of 3 and 4"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flows.cli.signal.signal", lambda *_: None)  # this process keeps its own
    monkeypatch.setattr("sys.excepthook", sys.excepthook)
    monkeypatch.setenv("PYTHONSAFEPATH", "1")
    monkeypatch.chdir(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("lora", ["0", "4"])
def test_it_says_what_the_model_of_the_run_does_behind_the_run_s_own_words(
    lab: Any, lora: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RLVF_HOME", str(lab.home))
    template = "please {prompt}:"
    run = Path(lab.train(steps="1", **{"policy.lora": lora, "problems.template": template}).run)
    capsys.readouterr()
    main(["sample", run.name, *PROMPTS])
    shown = capsys.readouterr()
    main(["sample", run.name, *PROMPTS, "--samples", "3", "--temperature", "2", "--max-tokens", "5", "--json"])
    drawn = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert "Loading weights" not in shown.err

    if lora == "0":
        policy = load_policy(str(run / "model"), PolicyConfig(device="cpu"))
    else:
        main(["export", run.name, "--merge", "--out", "merged"])
        policy = load_policy("merged", PolicyConfig(device="cpu"))
    problems = [Problem(prompt, "", "", instructions=Instructions("", template=template)) for prompt in PROMPTS]
    told: Any = {"seed": 0, "step": 0, "groups": range(2)}
    likely = sample(policy, 1, problems, SamplingConfig(max_tokens=12), samples=1, greedy=True, **told)
    assert shown.out == "\n".join(text for (text,) in likely.texts) + "\n"
    again = sample(policy, 1, problems, SamplingConfig(max_tokens=5, temperature=2.0), samples=3, **told)
    assert [each["completions"] for each in drawn] == [list(texts) for texts in again.texts]
    assert [(each["prompt"], each["step"]) for each in drawn] == [(prompt, 1) for prompt in PROMPTS]


@pytest.mark.usefixtures("home_folder")
def test_one_that_acts_on_an_environment_is_not_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = read_config(TrainConfig, file=None, overrides={"environment": "calculator"})
    Run(str(tmp_path / "played"), config, resumed=False).save_config()
    with pytest.raises(SystemExit):
        main(["sample", str(tmp_path / "played"), "add 1 and 2"])
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith(f"acts on an environment, turn by turn, which rlvf eval --policy {tmp_path}/played does")


@pytest.mark.parametrize(
    ("options", "instructions"),
    [
        ({"problems": "gone.jsonl", "verifier": "gone.py:reward"}, None),
        ({"problems": "gone.jsonl", "verifier": "gsm8k"}, declared("gsm8k").instructions),
        ({"problems.system": "Be brief."}, Instructions("Be brief.", required=True)),
    ],
)
def test_no_file_of_the_run_is_read_for_its_words(options: dict[str, str], instructions: Instructions | None) -> None:
    config = read_config(TrainConfig, file=None, overrides=options)
    (found,) = _asked("mine", config, ["a"])
    assert (found.prompt, found.instructions) == ("a", instructions)


@pytest.mark.usefixtures("home_folder")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("newest x --samples 0", "--samples 0: give 1 or more"),
        ("newest x --samples 2 --max-tokens 0", "--max-tokens 0: give 1 or more"),
        ("newest x --temperature 2", "--temperature 2: give one above 0, 10 at most, with --samples"),
        ("newest x --samples 2 --temperature -1", "--temperature -1: give one above 0"),
        ("nowhere x", "is not a run"),
        ("newest", "PROMPT"),
    ],
)
def test_a_mistake_is_one_line(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["sample", *words.split()])
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line
