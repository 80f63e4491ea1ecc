"""What a command names and is not there, said in one line before anything starts."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.usefixtures("own_signals_and_environment", "home_folder")
NOWHERE = "http://127.0.0.1:1"  # a port that nobody may listen on unseen


@pytest.mark.slow
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
    assert line.endswith("; start it, or leave it out to use a file under the home")


def test_a_variable_that_names_an_mlflow_server_is_called_by_its_name(
    refused: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", NOWHERE)
    line = refused("train")
    assert line.startswith(f"MLFLOW_TRACKING_URI: no MLflow server answers at {NOWHERE} (")
    assert line.endswith("; start it, or unset it to use a file under the home")


@pytest.mark.parametrize("where", ["/proc/nope", "/proc/nope/deeper", "{folder}/file/run"])
def test_a_run_that_cannot_be_made_is_one_line(
    refused: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    monkeypatch.setattr("flows.commands.train.in_workplace", None)
    (tmp_path / "file").write_text("")
    run = where.format(folder=tmp_path)
    takes_none = "/proc takes no folder (No such file or directory)"
    if "file" in run:
        takes_none = f"{tmp_path}/file takes no folder (Not a directory)"
    line = f"run {run}: cannot be written, as {takes_none}; name a place elsewhere"
    assert refused("train", "--run", run) == line
    (tmp_path / "shown.jsonl").write_text('{"prompt": "a", "completion": "b"}\n' * 9)
    monkeypatch.setattr("flows.commands.on_examples.in_workplace", None)
    assert refused("sft", "--problems", "shown.jsonl", "--run", run) == line


def test_a_scheduler_that_is_not_there_is_one_line_within_seconds(
    refused: Callable[..., str], home_folder: Path
) -> None:
    began = time.monotonic()
    assert refused("train", "--cluster.scheduler", "tcp://127.0.0.1:1").startswith(
        "cluster.scheduler = 'tcp://127.0.0.1:1' does not answer (nothing listens there: "
    )
    assert time.monotonic() - began < 8  # 2 of them for a port that opens meanwhile
    assert not (home_folder / "prefect").exists()


@pytest.mark.parametrize(
    "words",
    [
        "export {}",
        "report {}",
        "graph --run {}",
        "plan --run {}",
        "train --resume {}",
        "sft --resume {}",
        "train --verifier reward-model:{} --problems shown.jsonl",
        "eval --policy tiny --verifier reward-model:{} --problems shown.jsonl",
    ],
)
def test_a_mistyped_run_is_told_the_nearest_by_every_command(
    refused: Callable[..., str], home_folder: Path, words: str
) -> None:
    (home_folder / "runs" / "20260101-120000-tiny").mkdir(parents=True)
    line = refused(*words.format("20260101-120000-tinny").split())
    assert "; did you mean 20260101-120000-tiny?" in line


def test_a_run_without_weights_is_refused_before_anything_starts(
    refused: Callable[..., str], home_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = home_folder / "runs" / "bare"
    run.mkdir(parents=True)
    (run / "config.yaml").write_text("{}")
    monkeypatch.setattr("flows.commands.eval.in_workplace", None)
    assert refused("eval", "--policy", "bare") == (
        f"{run} has published no weights yet: `rlvf train --resume` goes on with it"
    )


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("train --problems data/gsm9k.jsonl", "data/gsm9k.jsonl: no such file; did you mean gsm8k.jsonl?"),
        ("eval --mix arithmetic,data/gsm9k.jsonl", "data/gsm9k.jsonl: no such file; did you mean gsm8k.jsonl?"),
        ("train --verifier my_verifer.py:score", "my_verifer.py: no such file; did you mean my_verifier.py?"),
        ("verify my_verifer.py:score", "my_verifer.py: no such file; did you mean my_verifier.py?"),
        ("train --algorithm my_verifer.py:Mine", "my_verifer.py: no such file; did you mean my_verifier.py?"),
    ],
)
def test_a_mistyped_file_is_told_the_nearest_of_its_folder(
    refused: Callable[..., str], tmp_path: Path, words: str, line: str
) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "gsm8k.jsonl").write_text("")
    (tmp_path / "my_verifier.py").write_text("")
    assert refused(*words.split()) == line
