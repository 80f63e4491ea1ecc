"""A run that lies elsewhere brings code and addresses: they are used when somebody here has said so."""

import socket
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main
from flows.config import EvalConfig, TrainConfig
from flows.options.reading import read_config
from flows.start.as_trained import asked_evaluation
from flows.start.resume import resume_run
from flows.start.trust import NotTrustedError, Program, refuse_swapped, remember, trusted, untrusted_settings
from flows.train import train
from tasks.own_algorithm import open_algorithm
from tasks.sets.named_set import open_verifier
from tests.flows.start.elsewhere import saved


@pytest.fixture
def reward(tmp_path: Path) -> Path:
    file = tmp_path / "my_reward.py"
    file.write_text("def reward(problem, completion):\n    return 1.0\n")
    return file


@pytest.mark.parametrize("setting", ["verifier", "algorithm"])
def test_what_was_opened_is_what_is_trusted_whatever_lies_there_now(elsewhere: str, reward: Path, setting: str) -> None:
    run = saved(elsewhere, **{setting: f"{reward}:reward"})

    def read() -> list[Program]:
        of = run.config
        return [open_verifier(of.verifier.name, of.verifier) if setting == "verifier" else open_algorithm(of.algorithm)]

    opened = read()
    good = reward.read_text()
    trusted(run, trust=True)
    refuse_swapped(run, opened)
    reward.write_text("import os\n" + good)
    with pytest.raises(NotTrustedError, match="was replaced while it was opened"):
        refuse_swapped(run, read())
    remember(run, opened)  # trained with the good one: the other one was not seen
    with pytest.raises(NotTrustedError, match="brings something else"):
        trusted(run)


def test_what_was_read_of_a_run_is_what_is_looked_at_whatever_lies_there_now(elsewhere: str) -> None:
    run = saved(elsewhere, tracking__uri="http://198.51.100.1:5000")
    saved(elsewhere)  # without it
    with pytest.raises(NotTrustedError, match=r"198\.51\.100\.1"):
        trusted(run)


def test_a_run_of_this_home_goes_on_with_an_edited_reward(home_folder: Path, reward: Path) -> None:
    run = saved(str(home_folder / "runs" / "mine"), verifier=f"{reward}:reward")
    remember(run)
    reward.write_text(reward.read_text() + "# edited\n")
    trusted(run)
    refuse_swapped(run, [])


def test_a_run_that_brings_nothing_needs_no_trust(elsewhere: str) -> None:
    trusted(saved(elsewhere))


@pytest.mark.parametrize("setting", ["verifier", "algorithm"])
def test_code_is_refused_in_one_line_until_it_is_trusted_and_again_when_it_changes(
    elsewhere: str, reward: Path, home_folder: Path, setting: str
) -> None:
    run = saved(elsewhere, **{setting: f"{reward}:reward"})
    with pytest.raises(NotTrustedError) as refused:
        trusted(run)
    line = str(refused.value)
    assert line.startswith(
        f"{elsewhere} was never trained from here, and going on would use its {setting} {reward}:reward;"
    )
    assert line.endswith("; if you know who wrote that, say --trust once")
    assert "\n" not in line
    trusted(run, trust=True)
    trusted(run)
    (record,) = (home_folder / "trusted").iterdir()
    assert record.stat().st_mode & 0o777 == 0o600
    reward.write_text(reward.read_text() + "import os\n")
    with pytest.raises(NotTrustedError, match="brings something else than it did here before"):
        trusted(run)
    remember(run)
    trusted(run)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("verifier", "http://198.51.100.1:8900"),
        ("problems__verifier", "http://198.51.100.1:8900"),
        ("evals", "[{path: grammar, verifier: 'http://198.51.100.1:8900'}, {path: grammar, verifier: arithmetic}]"),
        ("tracking__uri", "http://198.51.100.1:5000"),
        ("policy__engine", "http://198.51.100.1:8000"),
        ("cluster__scheduler", "tcp://198.51.100.1:8786"),
    ],
)
def test_addresses_are_refused_too_unless_they_are_ones_own(elsewhere: str, setting: str, value: str) -> None:
    run = saved(elsewhere, **{setting: value})
    with pytest.raises(NotTrustedError, match=r"198\.51\.100\.1"):
        trusted(run)
    if setting in ("tracking__uri", "cluster__scheduler", "policy__engine"):
        own = read_config(
            TrainConfig, file=None, overrides={setting.replace("__", "."): value.replace("198.51.100.1", "10.0.0.1")}
        )
        trusted(replace(run, config=own))


@pytest.mark.parametrize(
    ("setting", "value", "named"),
    [
        ("problems", "{folder}/*.csv", "problems {folder}/*.csv"),
        ("problems", "file://{folder}/a.csv", "problems file://{folder}/a.csv"),
        ("problems", "simplecache::file://{folder}/a.csv", "problems simplecache::file://{folder}/a.csv"),
        ("problems", "s3://b/a.zip::file://{folder}", "problems s3://b/a.zip::file://{folder}"),
        (
            "mix",
            "[{{path: a.csv}}, {{path: b.csv}}, {{path: 's3://bucket/c.csv'}}]",
            "mix a.csv, b.csv, s3://bucket/c.csv",
        ),
        ("problems", "http://127.0.0.1:18999/rows.jsonl", "problems http://127.0.0.1:18999/rows.jsonl"),
        ("problems", "http://169.254.169.254/latest/x.jsonl", "problems http://169.254.169.254/latest/x.jsonl"),
        ("problems", "HTTPS://intranet/rows.jsonl", "problems HTTPS://intranet/rows.jsonl"),
        ("problems", "s3://private/*.jsonl", "problems s3://private/*.jsonl"),
        ("problems", "hf://datasets/private/x.parquet", "problems hf://datasets/private/x.parquet"),
        ("problems", "sftp://host/rows.jsonl", "problems sftp://host/rows.jsonl"),
        ("evals", "[{{path: 'memory://another/rows.jsonl'}}]", "evals memory://another/rows.jsonl"),
        ("policy__model", "s3://private/model", "policy.model s3://private/model"),
        ("policy__model", "file://{folder}", "policy.model file://{folder}"),
        ("evals", "[{{path: ~/a.csv}}, {{path: held_out}}]", "evals ~/a.csv"),
        ("policy__model", "{folder}", "policy.model {folder}"),
        ("policy__model", "~/models/mine", "policy.model ~/models/mine"),
        ("policy__model", "mine/private-model", "policy.model mine/private-model"),
        ("verifier__env", "OPENAI_API_KEY,HF_TOKEN", "verifier.env OPENAI_API_KEY, HF_TOKEN"),
        ("verifier__reads", "~/.elan", "verifier.reads ~/.elan"),
        ("verifier__network", "true", "verifier.network true"),
        ("verifier", "reward-model:s3://theirs/judge", "verifier reward-model:s3://theirs/judge"),
        ("verifier__reward_model", "/home/ann/judge", "verifier.reward_model /home/ann/judge"),
        ("verifier__sandbox", "none", "verifier.sandbox none"),
        ("verifier__sandbox", "landlock", "verifier.sandbox landlock"),
    ],
)
def test_what_is_read_and_a_looser_sandbox_are_refused_by_name(
    elsewhere: str, tmp_path: Path, setting: str, value: str, named: str
) -> None:
    run = saved(elsewhere, **{setting: value.format(folder=tmp_path)})
    with pytest.raises(NotTrustedError) as refused:
        trusted(run)
    assert f"would use its {named.format(folder=tmp_path)}; if you know" in str(refused.value)
    trusted(run, trust=True)
    trusted(run)


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("problems", "countdown"),
        ("evals", "[{path: held_out}, {path: grammar}]"),
        ("policy__model", "tiny"),
        ("verifier__sandbox", "bubblewrap"),
    ],
)
def test_what_is_nobodys_or_as_strict_needs_no_trust(elsewhere: str, setting: str, value: str) -> None:
    trusted(saved(elsewhere, **{setting: value}))


@pytest.mark.parametrize(
    ("run", "path", "own"),
    [
        ("s3://bucket/runs/a", "s3://bucket/problems/*.jsonl", True),
        ("s3://bucket/runs/a", "s3://bucket2/problems/a.jsonl", False),
        ("s3://bucket/runs/a", "gs://bucket/problems/a.jsonl", False),
        ("s3://bucket/runs/a", "zip://a.jsonl::s3://bucket/a.zip", False),
        ("s3://bucket/runs/a", "s3://bucket/a.zip::file:///etc/passwd", False),
        ("sftp://host/runs/a", "sftp://host/runs/a/problems.jsonl", True),
        ("sftp://host/runs/a", "sftp://host/runs/a/../../etc/passwd", False),
        ("sftp://host/runs/a", "sftp://host/home/me/rows.jsonl", False),
        ("{folder}/run", "{folder}/run/problems.jsonl", True),
        ("{folder}/run", "file://{folder}/run/problems.jsonl", True),
        ("{folder}/run", "{folder}/run/../problems.jsonl", False),
        ("{folder}/run", "{folder}/run/*.jsonl", False),
        ("{folder}/run", "{folder}/run/link.jsonl", False),
        ("{folder}/run", "run/problems.jsonl", False),
    ],
)
def test_what_lies_with_the_run_is_its_own(tmp_path: Path, run: str, path: str, own: bool) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "link.jsonl").symlink_to("/etc/passwd")
    config = read_config(TrainConfig, file=None, overrides={"problems": path.format(folder=tmp_path)})
    assert (untrusted_settings(config, run.format(folder=tmp_path)) == {}) is own


@pytest.mark.parametrize(
    "named",
    [{"policy": "mine/private-model"}, {"policy.model": "mine/private-model"}, None],
    ids=["--", "dotted", "file"],
)
def test_a_model_that_one_names_oneself_needs_no_trust(
    elsewhere: str, tmp_path: Path, named: dict[str, str] | None
) -> None:
    saved(elsewhere, policy="mine/private-model")
    file = tmp_path / "mine.yaml"
    file.write_text("policy: mine/private-model\n")
    with pytest.raises(NotTrustedError, match=r"its policy\.model mine/private-model;"):
        trusted(resume_run(elsewhere, "unused", None, {"steps": "300"}))
    trusted(resume_run(elsewhere, "unused", None if named else str(file), named or {}))
    trusted(resume_run(elsewhere, "unused", None, {}))  # it was seen with the run


def test_problems_that_are_edited_need_no_new_trust(elsewhere: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('{"prompt": "a", "target": "b"}\n')
    run = saved(elsewhere, problems=str(file))
    trusted(run, trust=True)
    file.write_text('{"prompt": "c", "target": "d"}\n')
    trusted(run)


def test_a_run_of_this_home_needs_no_trust(home_folder: Path, reward: Path) -> None:
    trusted(saved(str(home_folder / "runs" / "mine"), verifier=f"{reward}:reward"))


def test_the_command_refuses_before_anything_starts(
    tmp_path: Path, reward: Path, home_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = saved(str(tmp_path / "shared" / "run"), verifier=f"{reward}:reward")
    with pytest.raises(SystemExit) as ended:
        main(["train", "--resume", run.uri])
    assert ended.value.code == 2
    assert "say --trust once" in capsys.readouterr().err
    assert not home_folder.exists()


@pytest.mark.slow
def test_a_flow_asks_nothing_that_such_a_run_names(lab: Any, tmp_path: Path) -> None:
    heard: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as scheduler:
        scheduler.settimeout(0.5)
        named = {"cluster__scheduler": f"tcp://127.0.0.1:{scheduler.getsockname()[1]}"}
        resolved = {"sampling__max_tokens": "40", "optimizer__lr": "3e-4"}
        run = saved(str(tmp_path / "shared" / "run"), **named, **resolved)
        with lab.prefect(), pytest.raises(NotTrustedError, match=r"its cluster\.scheduler tcp://"):
            train(TrainConfig(), resume=run.uri)
        with suppress(TimeoutError):
            heard.append(scheduler.accept())
    assert heard == []


@pytest.mark.parametrize("answer", ["y\n", "\n"])
def test_at_a_terminal_it_is_asked(
    elsewhere: str,
    reward: Path,
    answer: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin.readline", lambda: answer, raising=False)
    run = saved(elsewhere, verifier=f"{reward}:reward")
    with pytest.raises(NotTrustedError, match="say --trust once"):
        trusted(run)  # in a flow, whose display is on the terminal
    assert capsys.readouterr().err == ""
    if answer.strip():
        trusted(run, ask=True)
    else:
        with pytest.raises(NotTrustedError, match="nothing of it was run"):
            trusted(run, ask=True)
    assert f"its verifier {reward}:reward. Go on?" in capsys.readouterr().err


def test_an_evaluation_of_such_a_run_is_refused_too_and_not_with_a_verifier_of_ones_own(
    elsewhere: str, reward: Path, tmp_path: Path
) -> None:
    problems = tmp_path / "sums.csv"
    problems.write_text("python_expression,natural_language\n" + "".join(f"{n} + 1,add {n} and 1\n" for n in range(40)))
    saved(elsewhere, verifier=f"{reward}:reward", problems=str(problems), held_out="8")

    def asked(**options: str) -> EvalConfig:
        return read_config(EvalConfig, file=None, overrides={"policy": elsewhere, **options}, defaults=False)

    with pytest.raises(NotTrustedError, match="say --trust once"):
        asked_evaluation(asked())
    own = problems.with_name("own.csv")
    own.write_text(problems.read_text())
    asked_evaluation(asked(verifier="arithmetic", problems=str(own)))
    asked_evaluation(asked(), trust=True)
    asked_evaluation(asked())
