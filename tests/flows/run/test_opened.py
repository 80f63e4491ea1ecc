"""What a run goes on with in place."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.flows.accidents import STEPS, kill_in_call
from tests.processes import until

REWARD = "def reward(problem, completion):\n    return len(completion) % 5 / 4\n"


@pytest.mark.slow
def test_a_run_goes_on_in_place_with_what_it_was_begun_with_whatever_is_edited_meanwhile(
    lab: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that lies outside of the home, where edited code is asked about; somebody sits at the terminal."""
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdin.readline", lambda: pytest.fail("a flow reads no terminal"), raising=False)
    run, file, rows = tmp_path / "shared" / "run", tmp_path / "my_reward.py", tmp_path / "sums.csv"
    file.write_text(REWARD)
    rows.write_text(lab.problems.read_text())

    def edit_and_kill() -> None:
        until(lambda: 2 in lab.metrics(run, "groups/used"))
        file.write_text("def reward(problem, completion):\n    raise ValueError('edited')\n")
        rows.unlink()
        kill_in_call(lab, "trainer", "train", run, 7)

    lab.settle()
    with ThreadPoolExecutor(1) as pool:
        killing = pool.submit(edit_and_kill)
        result = lab.train(
            run=str(run), problems=str(rows), verifier=f"{file}:reward", steps=str(STEPS), checkpoint__every="5"
        )
        killing.result()
    assert result.lost == {"train": 1}
    assert list(lab.metrics(run, "reward/mean")) == list(range(1, STEPS + 1))
    assert set(lab.metrics(run, "reward/error_rate").values()) == {0.0}
