"""The command `rlvf`: one clear line for each mistake."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows import cli
from flows.cli import commands
from flows.commands.command import Command
from flows.config import TrainConfig
from flows.start.runs import Run
from rl.config import VERIFIERS

pytestmark = pytest.mark.usefixtures("own_signals_and_environment")
NAMES = [command.name for command in commands()]
HEADER = "python_expression,natural_language\n"
RUN = "from flows.cli import main; main()"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("verifier", "name what to do: serve"),
        ("train --lora true", "unknown option --lora; did you mean --policy.lora?"),
        ("train --use_vllm true", "unknown option --use_vllm; did you mean --policy.engine?"),
        ("train --fsdp x", "unknown option --fsdp: one trainer holds the whole model; there are no shards"),
        (
            "train --policy.lora.targets q_proj",
            "policy.lora: targets is of adapters, and rank is 0, which trains all parameters; give a rank, such as 16",
        ),
        (
            "train --gpus 2",
            "unknown option --gpus: one accelerator trains; others generate, each by an rlvf worker that joins "
            "cluster.scheduler",
        ),
        (
            "train --policy newest",
            "policy.model 'newest': means a run for eval, report and resume alone; begin with RUN/model of a run, or "
            "go on with the newest by --resume newest",
        ),
        ("trian", "unknown command trian; did you mean train?"),
        ("evl --policy newest", "unknown command evl; did you mean eval?"),
        ("help train", "unknown command help; did you mean rlvf --help?"),
        ("version", "unknown command version; did you mean rlvf --version?"),
        ("problems.csv", f"unknown command problems.csv; name one: {', '.join(NAMES)}"),
        (
            "train --problems.template {qestion}",
            "problems: template: has no {prompt} in it, so that every problem would be the same; its places are "
            "{prompt} and {system}, whatever the columns are called; did you mean {prompt} for {qestion}?",
        ),
        (
            r"train --problems.template \boxed{42}",
            "problems: template: has no {prompt} in it, so that every problem would be the same; its places are "
            "{prompt} and {system}, whatever the columns are called",
        ),
        ("train --step 3", "unknown option --step; did you mean --steps?"),
        ("train --algoritm.name grpo", "unknown option --algoritm.name; did you mean --algorithm.name?"),
        ("export newest --dtype bfloat16", "--dtype bfloat16: is of merged weights; add --merge"),
        ("eval --sample 3", "unknown option --sample; did you mean --samples?"),
        ("eval --resume x", "unknown option --resume"),
        ("export newest --to x", "unknown option --to; did you mean --out?"),
        ("eval mine", "unexpected argument 'mine'; did you mean --policy mine?"),
        ("train problems.csv", "unexpected argument 'problems.csv'; did you mean --problems problems.csv?"),
        ("eval a/*.jsonl.gz", "unexpected argument 'a/*.jsonl.gz'; did you mean --problems 'a/*.jsonl.gz'?"),
        ("train my.yaml", "unexpected argument 'my.yaml'; did you mean --config my.yaml?"),
        ("train model", "unexpected argument 'model'; `rlvf train --help` lists what there is"),
        ("train --kl_coef 0.1", "unknown option --kl_coef; did you mean --algorithm.kl?"),
        ("train --loss grpo", "unknown option --loss; did you mean --algorithm.name?"),
        (
            "train --wandb true",
            "unknown option --wandb: metrics go to MLflow (tracking.uri); nothing is sent to other services",
        ),
        ("train --report_to wandb", "unknown option --report_to; did you mean --tracking.uri?"),
        (
            "train --max_prompt_length 512",
            "unknown option --max_prompt_length: prompts are never cut; one that is too long for the model is named "
            "before a run begins",
        ),
        ("train --num_train_epochs 3", "unknown option --num_train_epochs; did you mean --steps?"),
        ("train --lr_scheduler_type cosine", "unknown option --lr_scheduler_type; did you mean --optimizer.decay?"),
        ("train --steps 0", "--steps: '0' is not allowed; give a whole number, at least 1"),
        ("train --steps many", "--steps: 'many' is not allowed; give a whole number, at least 1"),
        (
            "train --cluster.scheduler here",
            "--cluster.scheduler 'here': is no address of a scheduler; write it like tls://192.168.1.5:8786",
        ),
        ("train --optimizer.lr -1e-4", "--optimizer.lr: '-1e-4' is not allowed; give a number or null, above 0"),
        ("train --batch.samples 1", "--batch.samples: '1' is not allowed; give a whole number, at least 2"),
        ("train --config none.yaml", "none.yaml: no such file"),
        ("train --problems none.csv", "none.csv: no such file"),
        ("train --problems aritmetic", "aritmetic: no such file; did you mean arithmetic?"),
        ("train --problems n[12].csv", "n[12].csv: no such file, and no file matches it as a pattern"),
        (
            "train --problems openai/gsm8k",
            "openai/gsm8k: no such file; of a data set on the hub name its files, "
            "such as 'hf://datasets/openai/gsm8k/**/train*.parquet'",
        ),
        ("train --problems *.csv --resume none", "runs/none is not a run: there is nothing"),
        ("train --resume .", " is not a run: it has no config.yaml"),
        ("eval --problems none.csv", "none.csv: no such file"),
        ("train --verifier my_reward.py:reward", "my_reward.py: no such file"),
        (
            "eval --verifier my_reward.py",
            "verifier 'my_reward.py': name the function too, such as my_reward.py:reward",
        ),
        (
            "train --verifier my_reward:reward",
            f"verifier 'my_reward:reward' is none of {', '.join(VERIFIERS)}, reward-model:RUN; "
            "a function of yours is written my_reward.py:reward, a service https://host:port",
        ),
        (
            "train --verifier gsm9k",
            f"verifier 'gsm9k' is none of {', '.join(VERIFIERS)}, reward-model:RUN; did you mean gsm8k?",
        ),
        (
            "train --verifier http://",
            "verifier 'http://' is no address of a service; write it like https://127.0.0.1:8900",
        ),
        (
            "train --mix [{path:1]",
            "--mix: '[{path:1]' is not allowed; give a list in YAML, such as [{path: …, prompt: …}]",
        ),
        ("train --mix none.jsonl,other.csv", "none.jsonl: no such file"),
        (
            "verifier serve --host 0.0.0.0",
            "host 0.0.0.0 is open to other machines: make certificates with `rlvf certs`, or give --insecure in a "
            "network where you trust everyone",
        ),
        ("train --placement.verify JUDGE", "unknown tag 'JUDGE'; did you mean"),
    ],
)
def test_a_mistake_is_one_line(refused: Callable[..., str], words: str, line: str) -> None:
    said = refused(*words.split())
    assert line in said if line.startswith(" ") or "runs/" in line or "tag" in line else said == line


def test_the_module_is_the_command(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "flows.cli", "--version"]
    assert subprocess.run(words, cwd=tmp_path, capture_output=True, text=True).stdout.startswith("rlvf ")


@pytest.mark.parametrize("given", ["rewards/mine:judge", "rewards.mine:judge", "rewards.mine.judge"])
def test_a_function_in_pythons_own_notation_is_found_in_its_file(
    refused: Callable[..., str], tmp_path: Path, given: str
) -> None:
    (tmp_path / "rewards").mkdir()
    (tmp_path / "rewards" / "mine.py").write_text("def judge(problem, completion): return 1.0\n")
    said = refused("verify", given)
    assert said.endswith("; did you mean rewards/mine.py:judge?")
    assert refused("train", "--verifier", "rewards/mine").endswith("; did you mean rewards/mine.py:reward?")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("stepz: 3", "my.yaml: unknown key stepz; did you mean steps?"),
        ("algorithm:\n  nam: grpo", "my.yaml: unknown key algorithm.nam; did you mean algorithm.name?"),
        ("steps: 0", "my.yaml: steps: 0 is not allowed; give a whole number, at least 1"),
        ("steps: [1", "my.yaml: not valid YAML: line 1, column 10: expected ',' or ']', but got '<stream end>'"),
        ("", "my.yaml: is empty; write settings into it, or leave out --config"),
    ],
)
def test_a_mistake_in_a_file_is_one_line(refused: Callable[..., str], tmp_path: Path, text: str, line: str) -> None:
    (tmp_path / "my.yaml").write_text(text)
    assert refused("train", "--config", "my.yaml") == line


@pytest.mark.slow
@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", "p.csv is empty: expected a line with the names of the columns, then one problem a line"),
        (HEADER, "p.csv has column names but no problem below them"),
        (
            "expression,natural_language\n1,one\n",
            "p.csv: line 1: no column 'answer' (nor",
        ),
        (f"{HEADER}1,one\n1 + 1\n", "p.csv: line 3: broken row: 1 fields where the first line names 2 columns"),
        (f'{HEADER}1,one\n1 + 1,"one plus one\n', "p.csv: line 3: broken row: unexpected end of data"),
        (f"{HEADER}1 +,one\n", "p.csv: line 2: python_expression '1 +' cannot be evaluated"),
        (f"{HEADER}1,one\n2,two\n", "cannot hold out 2 of 2 distinct prompts: choose --held_out 0 to 1"),
    ],
)
@pytest.mark.parametrize("command", ["train", "eval"])
def test_problems_that_cannot_be_used_are_one_line(
    refused: Callable[..., str], tmp_path: Path, command: str, content: str, line: str
) -> None:
    (tmp_path / "p.csv").write_text(content)
    assert line in refused(command, "--problems", "p.csv", "--held_out", "2")


@pytest.mark.parametrize("command", ["train", "eval"])
@pytest.mark.parametrize("model", ["no/such", "nonsense", "./folder", "./missing"])
def test_an_unknown_model_is_one_line(refused: Callable[..., str], tmp_path: Path, command: str, model: str) -> None:
    (tmp_path / "folder").mkdir()
    also = "is no run; " if command == "eval" else ""
    again = "copy the model there again, or save it again with model.save_pretrained(FOLDER)"
    says = {"./folder": f"{also}the folder has no config.json; {again}", "./missing": f"{also}there is no such folder"}
    run = f"there is no run {tmp_path}/home/runs/{model}, and " if command == "eval" and model == "nonsense" else ""
    if model == "no/such" and command == "eval":
        run = "there is no run no/such, and "
    offline = (
        f"{run}HF_HUB_OFFLINE is set, and this machine has no copy of such a model: offline? then name a folder that "
        "holds one"
    )
    # a folder that is there goes to workers that stand elsewhere
    shown = f"{tmp_path}/folder" if (command, model) == ("train", "./folder") else model
    assert refused(command, "--policy", model) == f"policy.model {shown!r}: {says.get(model, offline)}"


def test_a_run_is_not_started_twice(refused: Callable[..., str], tmp_path: Path) -> None:
    Run(str(tmp_path / "home" / "runs" / "mine"), TrainConfig(), resumed=False).save_config()
    assert refused("train", "--run", "mine") == "run 'mine' exists; go on with it by --resume mine, or name another"


@pytest.mark.parametrize("by", ["option", "file"])
def test_a_run_does_not_go_on_as_another(refused: Callable[..., str], tmp_path: Path, by: str) -> None:
    Run(str(tmp_path / "home" / "runs" / "mine"), TrainConfig(), resumed=False).save_config()
    (tmp_path / "my.yaml").write_text("loss: grpo\n")  # as it was called
    words = ["--config", "my.yaml"] if by == "file" else ["--algorithm", "grpo"]
    said = "algorithm.name: saved 'reinforce', now 'grpo'"
    assert refused("train", "--resume", "mine", *words) == (
        f"mine cannot be resumed with {said}; leave it out, or start a new run"
    )


def test_a_home_that_cannot_be_is_one_line(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("RLVF_HOME", str(tmp_path / "file" / "home"))
    assert f"{tmp_path / 'file'} is no folder" in refused("sft")


HOSTILE = "\x1b]52;c;ZXZpbA==\x07\u202e[red]"
SHOWN = r"\x1b]52;c;ZXZpbA==\x07\u202e[red]"


@pytest.mark.parametrize(
    ("error", "code", "end"),
    [
        (ValueError(f"it said {HOSTILE}\nrlvf: more"), 2, ""),
        (RuntimeError(f"it said {HOSTILE}\nrlvf: more"), 1, " (set RLVF_TRACEBACK=1 for the whole story)"),
    ],
)
def test_what_an_error_quotes_does_not_act_on_the_terminal(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch, error: Exception, code: int, end: str
) -> None:
    def fail(_: Any) -> None:
        raise error

    monkeypatch.setattr(
        cli, "commands", lambda _: [Command("train", "fail", "rlvf train  fails", lambda _: None, fail)]
    )
    assert refused("train", code=code) == f"it said {SHOWN}; rlvf: more{end}"


def test_nor_does_what_a_traceback_quotes() -> None:
    program = (
        "import sys; from flows import cli; from flows.commands.command import Command\n"
        f"def fail(_): raise OSError({HOSTILE!r})\n"
        "cli.commands = lambda _: [Command('train', 'fail', 'rlvf train  fails', lambda _: None, fail)]\n"
        "cli.main(['train'])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "RLVF_TRACEBACK": "1"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == f"OSError: {SHOWN}"


@pytest.mark.slow
@pytest.mark.parametrize("words", [["train", "--stepz", "3"], ["train", "--problems", "none.csv"]])
def test_a_mistake_ends_the_process_at_once_with_code_2(tmp_path: Path, words: list[str]) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    ended = subprocess.run([sys.executable, "-c", RUN, *words], cwd=tmp_path, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert ended.stderr.startswith("rlvf: ")
    assert list(tmp_path.iterdir()) == []
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 3


@pytest.mark.parametrize("port", ["99999", "-1", "http", "65536"])
def test_what_is_no_port_is_one_short_line(refused: Callable[..., str], port: str) -> None:
    said = f"argument --port-prefect: {port} is no port: give 0 to 65535; 0 takes a free one"
    assert refused("up", f"--port-prefect={port}") == said
