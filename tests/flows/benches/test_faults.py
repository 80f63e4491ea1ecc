"""Faults that pass, and some that a run goes through as `tests/bench/faults.py` makes them."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from flows.benches.faults import away
from tests.bench.fault_kinds import FAULTS


def test_what_was_written_in_place_of_a_share_is_hidden_when_it_is_back(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    (runs / "mine").mkdir(parents=True)
    with away(runs):
        assert not runs.exists()
        (runs / "other").mkdir(parents=True)
    assert [each.name for each in runs.iterdir()] == ["mine"]
    (hidden,) = tmp_path.glob("runs-hidden-*")
    assert (hidden / "other").is_dir()
    with away(runs):
        pass
    assert (runs / "mine").is_dir()


@pytest.mark.slow
@pytest.mark.timeout(900)  # a machine of two cores with much else to do starts all this in minutes
@pytest.mark.parametrize(
    ("word", "resumed"),
    [
        ("sleeps through", False),
        ("storage is slow", False),
        ("quota", True),
        ("disk is full", True),
        ("clocks", False),
        ("damaged", False),
    ],
)
def test_a_run_goes_through_it_and_every_weight_is_as_without(
    word: str, resumed: bool, half_right: Path, sums: list[tuple[str, str]], tmp_path: Path
) -> None:
    (fault,) = [fault for name, fault in FAULTS.items() if word in name]
    if lacks := fault.lacks():
        pytest.skip(lacks)
    problems = tmp_path / "sums.csv"
    rows = [f"{expression},{text}" for expression, text in sums]
    problems.write_text("\n".join(["python_expression,natural_language", *rows]) + "\n")
    words = ["--only", word, "--policy", str(half_right), "--problems", str(problems), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.faults", *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    ((found,),) = json.loads(done.stdout).values()
    assert (found["faults"], found["resumed"]) == ([], resumed)
