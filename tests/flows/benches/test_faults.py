"""Faults that pass, and some that a run goes through as `tests/bench/faults.py` makes them."""

import errno
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from signal import SIGKILL

import pytest

from flows.benches.faults import away
from flows.benches.place import fresh_home
from infra.storage.faults import explained
from infra.storage.fence import Fence, LockLostError
from tests.bench.fault_kinds import FAULTS
from tests.bench.faults import Found, row, wrong_end


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


def test_a_home_is_removed_unless_what_is_done_in_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with fresh_home("mine-") as home:
        (home.folder / "runs").mkdir()
        assert home.folder.name.startswith("mine-")
    with pytest.raises(KeyboardInterrupt), fresh_home("mine-"):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []
    assert capsys.readouterr().err == ""
    with fresh_home("mine-") as found_wrong:
        found_wrong.failed = True
    with pytest.raises(SystemExit), fresh_home("mine-") as ended:
        sys.exit("the run without a fault: nothing")
    assert {each.name for each in tmp_path.iterdir()} == {found_wrong.folder.name, ended.folder.name}
    assert capsys.readouterr().err.splitlines() == [
        f"its home is kept, with all logs: {each.folder}" for each in (found_wrong, ended)
    ]


def test_a_row_is_of_all_runs() -> None:
    on, resumed = Found(1.0, None, False, ()), Found(3.0, 0.5, True, ("other weights",))
    assert row("x", [on]) == "| x | goes on | 1.0 | – | the same |"
    assert row("x", [resumed]) == "| x | resumed | 3.0 | 0.5 | other weights |"
    assert (
        row("x", [on, *9 * [resumed]]) == "| x | 9 of 10 resumed | 3.0 (worst 3.0) | 0.5 (worst 0.5) | other weights |"
    )
    assert [row("x", 10 * [each]).split(" | ")[1] for each in (on, resumed)] == ["goes on", "resumed"]


def said_of(error: BaseException) -> str:
    return explained(error) or str(error)


def test_a_run_that_ended_by_a_fault_said_why_or_was_killed(tmp_path: Path) -> None:
    with pytest.raises(LockLostError) as gone:
        Fence(str(tmp_path / "runs" / "mine"), 1).check()
    lines = {
        "disk is full": said_of(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))),
        "quota": said_of(OSError(errno.EDQUOT, os.strerror(errno.EDQUOT), "weights/x.tmp")),
        "folder is away": said_of(gone.value),
    }
    for name, fault in FAULTS.items():
        right = [line for word, line in lines.items() if word in name]
        assert len(right) == (fault.ends and "killed" not in name)
        for line in lines.values() if fault.ends else ():
            assert (wrong_end(fault, 1, f"rlvf: {line}") == []) == (line in right)
        assert (wrong_end(fault, -SIGKILL, "train  step 2/16") == []) == (not right)
    assert wrong_end(FAULTS["the flow is killed, and resumed"], 1, "KeyError: 3") == [
        "it ended with 1, and said last: KeyError: 3"
    ]


@pytest.mark.slow
@pytest.mark.timeout(1800)  # a machine of two cores with much else to do starts all this in minutes
@pytest.mark.parametrize(
    "words",
    [
        ("killed",),
        ("stops",),
        ("sleeps through", "leaves", "goes on with"),
        ("storage is slow",),
        ("quota",),
        ("disk is full",),
        ("folder is away",),
        ("clocks",),
    ],
    ids=" ".join,
)
def test_a_run_goes_through_it_and_every_weight_is_as_without(
    words: tuple[str, ...], half_right: Path, sums: list[tuple[str, str]], tmp_path: Path
) -> None:
    made = {name: fault for name, fault in FAULTS.items() if not fault.long and any(word in name for word in words)}
    if lacks := {fault.lacks() for fault in made.values()} - {""}:
        pytest.skip("; ".join(lacks))
    problems = tmp_path / "sums.csv"
    rows = [f"{expression},{text}" for expression, text in sums]
    problems.write_text("\n".join(["python_expression,natural_language", *rows]) + "\n")
    options = ["--policy", str(half_right), "--problems", str(problems), "--json"]
    done = subprocess.run(
        [sys.executable, "-m", "tests.bench.faults", "--only", *words, *options],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert {name: (run["faults"], run["resumed"]) for name, (run,) in found.items()} == {
        name: ([], fault.ends) for name, fault in made.items()
    }
