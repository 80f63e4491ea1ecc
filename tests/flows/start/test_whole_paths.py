"""A run's files are found from anywhere, and those of a run that does not say where they lay are compared."""

import json
from pathlib import Path

import pytest

from flows.config import EvalConfig, TrainConfig
from flows.evaluate import name_in_log, plan_in_log
from flows.options.reading import OptionError, read_config
from flows.start.as_trained import Asked, asked_evaluation
from flows.start.edited import save_sources
from flows.start.lineage import save_problems
from flows.start.resume import resume_run
from flows.start.runs import SOURCES, Run, new_run
from flows.start.saved import saved_config
from flows.start.whole_paths import whole_problems, whole_verifier
from infra.runs.metric_log import MetricLog
from tasks.sets.problem_set import open_problems

REWARD = "def reward(problem, completion):\n    return len(completion) % 2\n"
OPTIONS = {"problems": "sums.jsonl", "verifier": "my_reward.py:reward", "held_out": "4", "sampling.max_tokens": "12"}


def write(folder: Path, reward: str = REWARD, more: int = 0) -> Path:
    folder.mkdir()
    lines = [json.dumps({"prompt": f"add {more} to {n}", "target": f"{n} + {more}"}) for n in range(20)]
    (folder / "sums.jsonl").write_text("\n".join(lines) + "\n")
    (folder / "my_reward.py").write_text(reward)
    return folder


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a run was begun; another folder has other files of the same names."""
    write(tmp_path / "other", "def reward(problem, completion):\n    return 1.0\n", more=1)
    monkeypatch.chdir(write(tmp_path / "trained"))
    return tmp_path / "trained"


def begun(run: Run) -> Run:
    config = run.config
    problems = open_problems(config.sets, config.verifier, config.held_out, config.seed)
    run.save_config()
    save_problems(run.uri, problems)
    save_sources(run.uri, problems)
    return run


def configured(**options: str) -> TrainConfig:
    return read_config(TrainConfig, file=None, overrides={**OPTIONS, **options})


def asked(run: Run, **options: str) -> Asked:
    given = read_config(EvalConfig, file=None, overrides={"policy": run.uri, **options}, defaults=False)
    return asked_evaluation(given)


@pytest.mark.parametrize(
    ("path", "whole"),
    [
        ("sums.jsonl", "{here}/sums.jsonl"),
        ("data/*.csv", "{here}/data/*.csv"),
        ("~/sums.csv", "{home}/sums.csv"),
        ("file://sums.csv", "{here}/sums.csv"),
        ("/data/sums.csv", "/data/sums.csv"),
        ("s3://bucket/sums.csv", "s3://bucket/sums.csv"),
        ("zip://a.csv::rows.zip", "zip://a.csv::{here}/rows.zip"),
        ("simplecache::s3://bucket/a.csv", "simplecache::s3://bucket/a.csv"),
        ("countdown", "countdown"),
        ("held_out", "held_out"),
    ],
)
def test_a_path_is_whole(trained: Path, path: str, whole: str) -> None:
    assert whole_problems(path) == whole.format(here=trained, home=Path.home())


def test_a_verifier_is_whole_where_it_names_a_file(trained: Path) -> None:
    assert whole_verifier("my_reward.py:reward") == f"{trained}/my_reward.py:reward"
    for name in ("auto", "gsm8k", "https://127.0.0.1:8900", "s3://bucket/my_reward.py:reward"):
        assert whole_verifier(name) == name


def test_a_run_is_evaluated_and_resumed_by_its_own_files_from_anywhere(
    trained: Path, home_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sets = "[{path: sums.jsonl, verifier: 'my_reward.py:reward'}]"
    run = begun(new_run(configured(run="mine", mix=sets, evals=sets), str(home_folder / "runs")))
    saved = saved_config(run.uri)
    for each in (saved.problems, *saved.mix, *saved.evals):
        assert each.path == f"{trained}/sums.jsonl"
    assert saved.mix[0].verifier == saved.evals[0].verifier == saved.verifier.name == f"{trained}/my_reward.py:reward"
    here = asked(run)
    again = resume_run(run.uri, "unused", None, OPTIONS)  # named as it was when it began
    assert again.changes() == []
    monkeypatch.chdir(trained.with_name("other"))
    there = asked(run)
    assert (there.problems.held_out, there.problems.verifiers) == (here.problems.held_out, here.problems.verifiers)
    assert here.edited == there.edited == ()
    with pytest.raises(
        OptionError, match=r"problems\.path: saved '.*/trained/sums\.jsonl', now '.*/other/sums\.jsonl'"
    ):
        resume_run(run.uri, "unused", None, OPTIONS)


def test_what_is_not_what_a_run_of_an_older_version_was_trained_with_is_said_and_logged_apart(
    trained: Path, home_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(Run(str(home_folder / "runs" / "mine"), configured(), resumed=False))
    assert saved_config(run.uri).problems.path == "sums.jsonl"
    sources = Path(run.uri, SOURCES)
    sources.write_text(sources.read_text().replace(f"{trained}/", ""))
    here = asked(run)
    assert here.edited == ()
    assert name_in_log(here.config, here.problems, run, Path(run.uri)) == "sums"
    monkeypatch.chdir(trained.with_name("other"))
    there = asked(run)
    assert there.edited == (
        "mine was trained with other problems sums.jsonl: edited since",
        f"mine was trained with another verifier {Path.cwd()}/my_reward.py:reward: edited since",
    )
    assert set(there.edited) <= set(there.notes)
    name = name_in_log(there.config, there.problems, run, Path(run.uri), edited=True)
    assert name.startswith("sums-")
    MetricLog(Path(run.uri, "eval-sums.jsonl")).append(
        1, {"eval/sums/reward": 0.5}, plan_in_log(here.config, here.problems, run)
    )
    assert name_in_log(here.config, here.problems, run, Path(run.uri)) == "sums"
    assert name_in_log(there.config, there.problems, run, Path(run.uri)) == name


def test_an_edited_reward_or_file_of_a_new_run_is_said_too(trained: Path, home_folder: Path) -> None:
    run = begun(new_run(configured(run="mine"), str(home_folder / "runs")))
    (trained / "my_reward.py").write_text(REWARD + "# edited\n")
    assert asked(run).edited == (f"mine was trained with another verifier {trained}/my_reward.py:reward: edited since",)
    with (trained / "sums.jsonl").open("a") as rows:
        rows.write('{"prompt": "new", "target": "1"}\n')
    assert f"mine was trained with other problems {trained}/sums.jsonl: edited since" in asked(run).edited
    assert asked(run, verifier="arithmetic").edited == asked(run).edited[:1]
