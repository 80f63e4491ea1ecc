"""docs/environments.md does what it says."""

import json
import re
from pathlib import Path

import pytest

from rl.config import ENVIRONMENTS
from rl.environments.instance import MAX_CALLS, MAX_TEXT
from rl.environments.sessions import ROOM
from rl.environments.spec import EpisodeLimits
from rl.records import Problem
from rl.verifiers.built_in.functions import check
from rl.verifiers.isolation.watched import FORK_BYTES, PROCESSES

PAGE = (Path(__file__).parents[3] / "docs" / "environments.md").read_text("utf-8")
GUESS, PLAYED = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def test_the_class_of_the_page_is_played_as_it_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("guess.py").write_text(GUESS)
    exec(PLAYED, {})
    tools, *turns, reward = capsys.readouterr().out.splitlines()
    assert "'description': 'from 1 to 64'" in tools
    assert turns == ["32 ('lower',) False", "16 ('higher',) False", "17 ('right',) True"]
    assert float(reward) == 1 - 3 / 20


def test_its_figures_are_those_of_the_code() -> None:
    limits = EpisodeLimits()
    said = re.sub(r"\s+", " ", PAGE)
    assert f"`turns` ({limits.turns}), `seconds` ({limits.seconds:g}), `memory` ({limits.memory} MB)" in said
    assert f"A turn may make {MAX_CALLS} calls" in said
    assert f"an observation of at most {MAX_TEXT:,} characters" in said
    assert f"One sandbox holds up to {ROOM} episodes" in said
    assert f"more than {PROCESSES + ROOM} processes" in said
    assert f"and {FORK_BYTES // 2**20} MB for each" in said


def test_it_has_a_row_for_each_and_a_problem_that_can_be_judged() -> None:
    table = PAGE.partition("## Environments that are there")[2].partition("\n## ")[0]
    assert re.findall(r"^\| `([a-z]+)` \| ", table, re.MULTILINE) == list(ENVIRONMENTS)
    (line,) = re.findall(r"^ +(\{\"prompt\".*\})$", PAGE, re.MULTILINE)
    problem = json.loads(line)
    check(Problem(problem["prompt"], problem["target"], "page"))
