"""The command `rlvf`: its help, and one clear line for each mistake."""

import json
import os
import re
import resource
import socket
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from flows import cli
from flows.cli import COMMANDS, main
from flows.commands.command import Command
from flows.commands.parser import OneLineParser
from flows.config import EvalConfig, ServeConfig, SftConfig, TrainConfig
from flows.options.tree import leaf_values
from flows.options.usual_names import USUAL_NAMES
from flows.start.runs import Run
from tests.processes import until

pytestmark = pytest.mark.usefixtures("own_signals_and_environment")
NAMES = [command.name for command in COMMANDS]
HEADER = "python_expression,natural_language\n"
RUN = "from flows.cli import main; main()"
NOWHERE = "http://127.0.0.1:1"  # a port that nobody may listen on unseen


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Gives a command and returns what it says after "rlvf: "; it writes nothing and starts nothing."""
    monkeypatch.chdir(tmp_path)

    def run(*words: str, code: int = 2) -> str:
        before = sorted(tmp_path.rglob("*"))
        with pytest.raises(SystemExit) as stopped:
            main(words)
        printed = capsys.readouterr()
        assert stopped.value.code == code, printed.err
        assert printed.out == ""
        assert printed.err.startswith("rlvf: ")
        assert printed.err.count("\n") == 1
        assert printed.err.endswith("\n")
        assert sorted(tmp_path.rglob("*")) == before
        return printed.err[len("rlvf: ") : -1]

    return run


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("", f"name a command: {', '.join(NAMES)}"),
        ("trian", f"argument COMMAND: invalid choice: 'trian' (choose from {', '.join(map(repr, NAMES))})"),
        ("train --step 3", "unknown option --step; did you mean --steps?"),
        ("train --losss.name grpo", "unknown option --losss.name; did you mean --loss.name?"),
        ("eval --sample 3", "unknown option --sample; did you mean --samples?"),
        ("sft --resume x", "unknown option --resume"),
        ("train problems.csv", "unexpected argument 'problems.csv'; did you mean --problems problems.csv?"),
        ("eval a/*.jsonl.gz", "unexpected argument 'a/*.jsonl.gz'; did you mean --problems 'a/*.jsonl.gz'?"),
        ("train my.yaml", "unexpected argument 'my.yaml'; did you mean --config my.yaml?"),
        ("train model", "unexpected argument 'model'; `rlvf train --help` lists what there is"),
        (
            "train --beta 0.1",
            "unknown option --beta: no KL to a reference model is in the loss; loss.clip and loss.dual_clip bound each "
            "update",
        ),
        (
            "train --kl_coef 0.1",
            "unknown option --kl_coef: no KL to a reference model is in the loss; loss.clip and "
            "loss.dual_clip bound each update",
        ),
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
        ("train --loss ppo", "--loss.name: 'ppo' is not allowed; give one of reinforce, grpo"),
        ("train --batch.samples 1", "--batch.samples: '1' is not allowed; give a whole number, at least 2"),
        ("train --config none.yaml", "none.yaml: no such file"),
        ("train --problems none.csv", "none.csv: no such file, and no file matches it as a pattern"),
        ("train --problems *.csv --resume none", "runs/none is not a run: there is nothing"),
        ("train --resume .", ". is not a run: it has no config.yaml"),
        ("eval --problems none.csv", "none.csv: no such file, and no file matches it as a pattern"),
        (
            "train --verifier my_reward.py:reward",
            "my_reward.py: no such file, and no file matches it as a pattern",
        ),
        (
            "eval --verifier my_reward.py",
            "verifier 'my_reward.py': name the function too, such as my_reward.py:reward",
        ),
        (
            "train --verifier gsm9k",
            "verifier 'gsm9k' is none of arithmetic, gsm8k, countdown, math; a function of yours is written "
            "my_reward.py:reward, a service http://host:port",
        ),
        (
            "train --verifier http://",
            "verifier 'http://' is no address of a service; write it like https://127.0.0.1:8900",
        ),
        (
            "train --mix [{path:1]",
            "--mix: '[{path:1]' is not allowed; give a list in YAML, such as [{path: …, prompt: …}]",
        ),
        ("train --mix none.jsonl,other.csv", "none.jsonl: no such file, and no file matches it as a pattern"),
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
    assert line in said if "runs/" in line or "tag" in line else said == line


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("stepz: 3", "my.yaml: unknown key stepz; did you mean steps?"),
        ("loss:\n  nam: grpo", "my.yaml: unknown key loss.nam; did you mean loss.name?"),
        ("steps: 0", "my.yaml: steps: 0 is not allowed; give a whole number, at least 1"),
        ("steps: [1", "my.yaml: not valid YAML: line 1, column 10: expected ',' or ']', but got '<stream end>'"),
        ("", "my.yaml: is empty; write settings into it, or leave out --config"),
    ],
)
def test_a_mistake_in_a_file_is_one_line(refused: Callable[..., str], tmp_path: Path, text: str, line: str) -> None:
    (tmp_path / "my.yaml").write_text(text)
    assert refused("train", "--config", "my.yaml") == line


@pytest.mark.parametrize(
    ("content", "line"),
    [
        ("", "p.csv is empty: expected a line with the names of the columns, then one problem a line"),
        (HEADER, "p.csv has column names but no problem below them"),
        (
            "expression,natural_language\n1,one\n",
            "p.csv: line 1: no column 'python_expression' (nor",
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
    says = {"./folder": f"{also}the folder has no config.json", "./missing": f"{also}there is no such folder"}
    run = f"there is no run {tmp_path}/home/runs/{model}, and " if command == "eval" and model == "nonsense" else ""
    if model == "no/such" and command == "eval":
        run = "there is no run no/such, and "
    offline = f"{run}HF_HUB_OFFLINE is set, and this machine has no copy of such a model: offline?"
    assert refused(command, "--policy", model) == f"policy.model {model!r}: {says.get(model, offline)}"


def test_a_run_is_not_started_twice(refused: Callable[..., str], tmp_path: Path) -> None:
    Run(str(tmp_path / "home" / "runs" / "mine"), TrainConfig(), resumed=False).save_config()
    assert refused("train", "--run", "mine") == "run 'mine' exists; go on with it by --resume mine, or name another"


@pytest.mark.parametrize("by", ["option", "file"])
def test_a_run_does_not_go_on_as_another(refused: Callable[..., str], tmp_path: Path, by: str) -> None:
    Run(str(tmp_path / "home" / "runs" / "mine"), TrainConfig(), resumed=False).save_config()
    (tmp_path / "my.yaml").write_text("loss: grpo\n")
    words = ["--config", "my.yaml"] if by == "file" else ["--loss", "grpo"]
    said = "loss.name: saved 'reinforce', now 'grpo'"
    assert refused("train", "--resume", "mine", *words) == (
        f"mine cannot be resumed with {said}; leave it out, or start a new run"
    )


def test_a_prefect_server_that_is_not_there_is_one_line(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", f"{NOWHERE}/api")
    assert refused("train") == (
        f"PREFECT_API_URL = '{NOWHERE}/api': no Prefect API answers there; start it, or unset the variable to use a "
        "local server"
    )


@pytest.mark.parametrize("uri", [NOWHERE, NOWHERE.replace("//", "//me:secret@")])
def test_an_mlflow_server_that_is_not_there_is_one_line(refused: Callable[..., str], uri: str) -> None:
    line = refused("train", "--tracking.uri", uri)
    assert line.startswith(f"tracking.uri: no MLflow server answers at {NOWHERE} (")
    assert "secret" not in line


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

    monkeypatch.setattr(cli, "COMMANDS", (Command("train", "fail", "rlvf train  fails", lambda _: None, fail),))
    assert refused("train", code=code) == f"it said {SHOWN}; rlvf: more{end}"


def test_nor_does_what_a_traceback_quotes() -> None:
    program = (
        "import sys; from flows import cli; from flows.commands.command import Command\n"
        f"def fail(_): raise OSError({HOSTILE!r})\n"
        "cli.COMMANDS = (Command('train', 'fail', 'rlvf train  fails', lambda _: None, fail),); cli.main(['train'])"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "RLVF_TRACEBACK": "1"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == f"OSError: {SHOWN}"


@pytest.mark.parametrize("words", [["train", "--stepz", "3"], ["train", "--problems", "none.csv"]])
def test_a_mistake_ends_the_process_at_once_with_code_2(tmp_path: Path, words: list[str]) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    ended = subprocess.run([sys.executable, "-c", RUN, *words], cwd=tmp_path, capture_output=True, text=True)
    assert (ended.returncode, ended.stdout, ended.stderr.count("\n")) == (2, "", 1)
    assert ended.stderr.startswith("rlvf: ")
    assert list(tmp_path.iterdir()) == []
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < 3


@pytest.mark.parametrize("words", [[], *([name] for name in NAMES)])
def test_help_is_there_without_the_heavy_libraries(words: list[str]) -> None:
    heavy = ("torch", "transformers", "prefect", "mlflow", "pandas", "matplotlib")
    code = f"import atexit, sys; atexit.register(lambda: print({heavy!r} & sys.modules.keys(), file=sys.stderr)); {RUN}"
    code = code.replace(repr(heavy), repr(set(heavy)))
    (first,) = [command.first for command in COMMANDS if [command.name] == words] or [()]
    asked = ["--help", "all"] if first else ["--help"]
    ended = subprocess.run([sys.executable, "-c", code, *words, *asked], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "set()\n")
    if not words:
        assert all(f"    {command} " in ended.stdout for command in NAMES)
        return
    assert f"\n  rlvf {words[0]} " in ended.stdout.partition("example")[2]
    configs = {"train": TrainConfig(), "sft": SftConfig(), "eval": EvalConfig(), "verifier": ServeConfig()}
    if words[0] not in configs:
        return
    config = configs[words[0]]
    missing = [path for path, _ in leaf_values(config) if f"  --{path} " not in ended.stdout]
    assert missing == []
    assert "  --json " in ended.stdout


@pytest.mark.parametrize("command", [command for command in COMMANDS if command.first], ids=lambda each: each.name)
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
    assert len(listed) <= 13
    assert brief.index("example") < brief.index("options:") < brief.index(f"\n  --{listed[0]} ")
    assert whole.index("example") < whole.index("options:")
    assert len(brief.splitlines()) <= 60 < len(whole.splitlines())
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
        *(("max_new_tokens", "sampling.max_tokens"), ("max-tokens", "sampling.max_tokens"), ("clip", "loss.clip")),
        *(("data.train_files", "problems"), ("reward_funcs", "verifier"), ("temperature", "sampling.temperature")),
    ],
)
def test_a_name_that_others_use_gets_ours(refused: Callable[..., str], tmp_path: Path, name: str, ours: str) -> None:
    assert refused("train", f"--{name}", "1") == f"unknown option --{name}; did you mean --{ours}?"
    (tmp_path / "my.yaml").write_text(f"{name}: 1\n")
    meant = {"problems": "problems", "verifier": "verifier"}.get(ours, ours)
    assert refused("train", "--config", "my.yaml") == f"my.yaml: unknown key {name}; did you mean {meant}?"


def test_every_usual_name_leads_to_an_option() -> None:
    known: set[str] = set()
    for command in COMMANDS:
        there = OneLineParser()
        command.options(there)
        known |= {option.removeprefix("--") for option in there._option_string_actions}
    assert {ours for ours in USUAL_NAMES.values() if ours not in known} == set()


@pytest.mark.parametrize("port", ["99999", "-1", "http", "65536"])
def test_what_is_no_port_is_one_short_line(refused: Callable[..., str], port: str) -> None:
    said = f"argument --port-prefect: {port} is no port: give 0 to 65535; 0 takes a free one"
    assert refused("up", f"--port-prefect={port}") == said


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"placement.generate": "GENERATOR,CUDA"},
            "placement.generate needs GENERATOR and CUDA but no worker offers CUDA. Workers: ",
        ),
        ({"cluster.scheduler": "tcp://127.0.0.1:1"}, "cluster.scheduler = 'tcp://127.0.0.1:1' does not answer ("),
    ],
)
def test_a_mistake_that_only_the_cluster_can_tell_is_one_line_too(lab: Any, options: dict[str, str], line: str) -> None:
    name = lab.new_name()
    asked = {"run": name, "cluster.scheduler": lab.client.scheduler.address, **options}
    with lab.command("train", options=asked) as command:
        code, out, err = command.finish()
        until(lambda: not command.alive())
    assert (code, out) == (2, "")
    assert err.startswith(f"start\nhome {lab.home} ($RLVF_HOME)\nrlvf: {line}")
    assert err.count("\n") == 3
    assert not lab.run_folder(name).exists()


def test_a_tracking_uri_that_mlflow_does_not_know_leaves_no_run(lab: Any) -> None:
    name = lab.new_name()
    asked = {"run": name, "cluster.scheduler": lab.client.scheduler.address, "tracking.uri": "nosuch://place"}
    with lab.command("train", options=asked) as command:
        code, out, err = command.finish()
    assert (code, out) == (2, "")
    assert err.splitlines()[-1].startswith("rlvf: tracking.uri nosuch://place: no MLflow run could be created (")
    assert "Traceback" not in err
    assert not lab.run_folder(name).exists()


def test_servers_and_workers_that_were_started_in_vain_are_gone_afterwards(lab: Any, tmp_path: Path) -> None:
    home = lab.fresh_home(tmp_path / "another")
    with lab.command("train", options={"cluster.generators": "0"}, home=home) as command:
        code, out, err = command.finish()
        until(lambda: not command.alive())
    assert (code, out) == (2, "")
    (line,) = [line for line in err.splitlines() if line.startswith("rlvf: ")]
    assert line.startswith(
        "rlvf: placement.generate needs GENERATOR but no worker offers GENERATOR. Workers: trainer: "
    )
    assert line.endswith(". Ask for one: --cluster.generators 1")
    assert "Traceback" not in err
    assert not (home / "runs").exists()


def test_a_port_in_use_is_passed_over_and_said(lab: Any, tmp_path: Path) -> None:
    home = lab.fresh_home(tmp_path / "another")
    quick = {"warm_up.steps": "2", "warm_up.batch": "4"}
    with socket.socket() as taken:
        with suppress(OSError):  # then it is in use already
            # as servers do: a connection of the test before may linger there
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", 4200))
            taken.listen()
        with lab.command("sft", "--json", options=quick, home=home) as command:
            code, out, err = command.finish()
            until(lambda: not command.alive())
    assert code == 0, err
    assert Path(json.loads(out)["policy"]).parent == home / "warmup"
    (line,) = [line for line in err.splitlines() if "port 4200" in line]
    assert line.startswith("port 4200 is in use: the Prefect server listens on ")
    assert 0 < int(line.rpartition(" ")[2]) != 4200


@pytest.mark.parametrize(
    "words",
    [
        ["train", "--run", "s3://nobody/run"],
        ["train", "--resume", "s3://nobody/run"],
        ["train", "--config", "s3://nobody/my.yaml"],
        ["report", "s3://nobody/run"],
        ["eval", "--policy", "s3://nobody/run"],
        ["train"],
    ],
)
@pytest.mark.parametrize("lacking", ["credentials", "endpoint"])
def test_a_storage_that_cannot_be_used_is_one_line(
    words: list[str], lacking: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    s3fs = pytest.importorskip("s3fs", reason="needs s3fs: install the extra 's3'")
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_ENDPOINT_URL_S3", "http://127.0.0.1:1")
    if words == ["train"]:
        monkeypatch.setenv("RLVF_STORAGE", "s3://nobody/storage")
    if lacking == "endpoint":
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "tester")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "tester's")
    s3fs.S3FileSystem.clear_instance_cache()
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith(f"rlvf: {words[-1] if len(words) > 1 else 's3://nobody/storage/runs'}: ")
    assert ("AWS_ACCESS_KEY_ID" if lacking == "credentials" else "AWS_ENDPOINT_URL_S3") in line
    s3fs.S3FileSystem.clear_instance_cache()
