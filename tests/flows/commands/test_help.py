"""The help of `rlvf`, its version, and the names that others use."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from signal import SIGPIPE

import pytest

from flows.cli import commands, main
from flows.commands.command import Command
from flows.commands.parser import OneLineParser
from flows.config import EvalConfig, ServeConfig, TrainConfig
from flows.finetune_config import SftConfig
from flows.options.tree import leaf_values
from flows.options.usual_names import usual_names

pytestmark = pytest.mark.usefixtures("own_signals_and_environment")
NAMES = [command.name for command in commands()]
RUN = "from flows.cli import main; main()"


@pytest.mark.parametrize(
    ("words", "named"), [([], NAMES), (["bench"], "sync update generate fit generators soak".split())]
)
def test_without_a_command_all_are_shown_as_help_shows_them(
    words: list[str], named: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main([*words, "--help"])
    shown = capsys.readouterr().out
    with pytest.raises(SystemExit) as missed:
        main(words)
    said = capsys.readouterr()
    assert (missed.value.code, said.out, said.err) == (2, "", f"{shown}\nrlvf: name a command\n")
    assert [re.search(rf"^    {name}( |$)", shown, re.MULTILINE) is not None for name in named] == [True] * len(named)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [[], ["train"], *(pytest.param([name], marks=pytest.mark.slow) for name in NAMES if name != "train")]
)
def test_help_is_there_without_the_heavy_libraries(words: list[str]) -> None:
    heavy = {"torch", "transformers", "prefect", "mlflow", "pandas", "matplotlib"}
    if words and words[0] not in (
        "train",
        "sft",
        "dpo",
        "reward-model",
        "eval",
        "worker",
    ):  # without words it is the help of all
        heavy.add("distributed")
    code = f"import atexit, sys; atexit.register(lambda: print({heavy!r} & sys.modules.keys(), file=sys.stderr)); {RUN}"
    (first,) = [command.first for command in commands() if [command.name] == words] or [()]
    asked = ["--help", "all"] if first else ["--help"]
    ended = subprocess.run([sys.executable, "-c", code, *words, *asked], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "set()\n")
    if not words:
        assert all(re.search(rf"^    {command}\s", ended.stdout, re.M) for command in NAMES)
        return
    assert f"\n  rlvf {words[0]} " in ended.stdout.partition("example")[2]
    configs = {"train": TrainConfig(), "sft": SftConfig(), "eval": EvalConfig(), "verifier": ServeConfig()}
    if words[0] not in configs:
        return
    config = configs[words[0]]
    missing = [path for path, _ in leaf_values(config) if f"  --{path} " not in ended.stdout]
    assert missing == []
    assert "  --json " in ended.stdout


@pytest.mark.parametrize("command", [command for command in commands() if command.first], ids=lambda each: each.name)
def test_help_begins_with_examples_and_the_options_that_most_need(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, command: Command
) -> None:
    def said(*words: str) -> str:
        with pytest.raises(SystemExit) as stopped:
            main([command.name, *words])
        assert stopped.value.code == 0
        return capsys.readouterr().out

    monkeypatch.setenv("COLUMNS", "80")
    brief, whole = said("--help"), said("--help", "all")
    assert said("-h") == brief
    listed = re.findall(r"^  --([\w.]+)", brief, re.MULTILINE)
    assert listed == list(command.first)
    assert len(listed) <= 14
    assert brief.index("example") < brief.index("options:") < brief.index(f"\n  --{listed[0]} ")
    assert whole.index("example") < whole.index("options:")
    assert len(brief.splitlines()) <= 64 < len(whole.splitlines())
    everything = set(re.findall(r"^  --([\w.]+)", whole, re.MULTILINE))
    assert set(listed) < everything
    assert f"{len(everything - set(listed))} more options: rlvf {command.name} --help all" in brief


def test_help_takes_only_all(refused: Callable[..., str]) -> None:
    assert refused("train", "--help", "loss") == "--help loss: give nothing after it, or all"


def test_the_version_is_that_of_the_installed_program(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert (stopped.value.code, capsys.readouterr().out) == (0, f"rlvf {version('rlvf')}\n")


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        *(
            ("learning_rate", "optimizer.lr"),
            ("lr", "optimizer.lr"),
            ("actor_rollout_ref.actor.optim.lr", "optimizer.lr"),
        ),
        *(("learning-rates", "optimizer.lr"), ("num_generations", "batch.samples"), ("model", "policy.model")),
        *(
            ("max_new_tokens", "sampling.max_tokens"),
            ("max-tokens", "sampling.max_tokens"),
            ("cliprange", "algorithm.clip"),
        ),
        *(("max_head_offpolicyness", "staleness"), ("rollout.max_head_offpolicyness", "staleness")),
        *(("tis", "algorithm.correction"), ("truncated_importance_sampling", "algorithm.correction")),
        *(("data.train_files", "problems"), ("reward_funcs", "verifier"), ("temperature", "sampling.temperature")),
    ],
)
def test_a_name_that_others_use_gets_ours(refused: Callable[..., str], tmp_path: Path, name: str, ours: str) -> None:
    assert refused("train", f"--{name}", "1") == f"unknown option --{name}; did you mean --{ours}?"
    (tmp_path / "my.yaml").write_text(f"{name}: 1\n")
    meant = {"problems": "problems", "verifier": "verifier"}.get(ours, ours)
    assert refused("train", "--config", "my.yaml") == f"my.yaml: unknown key {name}; did you mean {meant}?"


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (
            "importance_sampling_level",
            "the ratio of a whole completion is gspo's (--algorithm gspo); other losses take each token's",
        ),
        (
            "partial_rollout",
            "from staleness 1 on completions go on by themselves, with newer weights (inflight.weights) and on "
            "whichever generator is free (batch.slice_seconds)",
        ),
    ],
)
def test_what_others_have_an_option_for_is_said(refused: Callable[..., str], name: str, said: str) -> None:
    assert refused("train", f"--{name}", "sequence") == f"unknown option --{name}: {said}"


def test_every_usual_name_leads_to_an_option() -> None:
    known: set[str] = set()
    for command in commands():
        there = OneLineParser()
        command.options(there)
        known |= {option.removeprefix("--") for option in there._option_string_actions}
    assert {ours for ours in usual_names().values() if ours not in known} == set()


@pytest.mark.slow
@pytest.mark.parametrize("words", [["status"], ["train", "--help", "all"]])
def test_a_reader_that_has_seen_enough_ends_a_command_in_silence(words: list[str], home_folder: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-c", "from flows.cli import main; main()", *words]
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, text=True, check=False)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (128 + SIGPIPE, "")
    assert not home_folder.exists()


@pytest.mark.slow
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full: Linux")
def test_output_that_cannot_be_written_is_one_line() -> None:
    command = [sys.executable, "-c", "from flows.cli import main; main()", "train", "--help"]
    with Path("/dev/full").open("w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (1, "rlvf: the output cannot be written: No space left on device\n")
