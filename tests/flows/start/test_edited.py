"""A run whose reward was edited since it was trained goes on by the new one, and says so."""

import json
from pathlib import Path
from typing import Any

import pytest

from flows.config import TrainConfig
from flows.options.reading import read_config
from flows.start.edited import SOURCES, edited, save_sources
from infra.storage.typed import DamagedError
from tasks.sets.problem_set import ProblemSet, open_problems

REWARD = "def reward(problem, completion):\n    return len(completion) / 100\n"


def opened(folder: Path, verifier: str = "my_reward.py:reward") -> ProblemSet:
    named = {"problems": f"{folder}/sums.jsonl", "problems.verifier": verifier}
    config = read_config(TrainConfig, file=None, overrides=named)
    return open_problems(config.sets, config.verifier, config.held_out, config.seed)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path, hint="count")
    (tmp_path / "my_reward.py").write_text(REWARD)
    return tmp_path


def write_rows(folder: Path, hint: str, rows: int = 20) -> None:
    lines = [{"prompt": f"add 1 to {n}", "target": f"{n} + 1", "hint": hint} for n in range(rows)]
    (folder / "sums.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_an_edited_verifier_and_edited_columns_are_named_until_they_are_what_the_run_is_trained_by(
    folder: Path,
) -> None:
    for run in (str(folder / "run"), "memory://edited/run"):
        assert edited(run, opened(folder)) == []  # a run of an older version
        save_sources(run, opened(folder))
        assert edited(run, opened(folder)) == []
        (folder / "my_reward.py").write_text(REWARD.replace("100", "200"))
        assert edited(run, opened(folder)) == [f"verifier {folder}/my_reward.py:reward: edited since"]
        write_rows(folder, hint="think")
        columns = "problems sums, columns beside prompt and target: edited since"
        assert edited(run, opened(folder)) == [f"verifier {folder}/my_reward.py:reward: edited since", columns]
        save_sources(run, opened(folder))
        assert edited(run, opened(folder)) == []
        (folder / "my_reward.py").write_text(REWARD)
        write_rows(folder, hint="count")


def test_the_order_of_a_file_is_no_edit_and_of_a_service_nothing_is_known(folder: Path) -> None:
    save_sources(str(folder), opened(folder, "https://127.0.0.1:8900"))
    kept = json.loads((folder / SOURCES).read_text())
    assert not [name for name in kept if "8900" in name]
    lines = (folder / "sums.jsonl").read_text().splitlines(keepends=True)
    (folder / "sums.jsonl").write_text("".join(reversed(lines)))
    assert edited(str(folder), opened(folder)) == []


@pytest.mark.parametrize("content", [b"", b"[]", b'{"a": 1}', b"\x80"])
def test_a_damaged_record_of_it_is_refused_in_one_line(folder: Path, content: bytes) -> None:
    (folder / SOURCES).write_bytes(content)
    with pytest.raises(DamagedError, match=r"sources\.json is damaged \(.+\); remove it, and nothing is") as refused:
        edited(str(folder), opened(folder))
    assert "\n" not in str(refused.value)


@pytest.mark.slow
def test_a_resumed_run_says_once_that_its_reward_was_edited(
    lab: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "my_reward.py"
    options = {"verifier": f"{file}:reward", "run": lab.new_name()}
    file.write_text(REWARD)
    lab.train(steps="1", **options)
    file.write_text(REWARD.replace("100", "200"))
    line = f"other than before: verifier {file}:reward: edited since"
    for steps, times in (("2", 1), ("3", 0)):
        capsys.readouterr()
        lab.train(resume=options["run"], steps=steps, **options)
        assert capsys.readouterr().err.count(line) == times
