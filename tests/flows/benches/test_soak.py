"""`rlvf bench soak`: its list of faults, what it finds, and two minutes of it."""

import json
import os
import tempfile
import time
from pathlib import Path

import pytest

from flows.benches import footprint
from flows.benches.footprint import Footprint, Reading, kind_of
from flows.benches.place import MarkedHome
from flows.benches.soak import AWAY, FAULTS, Soaked, planned
from flows.cli import main


@pytest.mark.slow(always=True)
@pytest.mark.timeout(900)  # a machine of two cores with much else to do starts all this in minutes
def test_two_minutes_of_faults(
    half_right: Path, sums: list[tuple[str, str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    problems = tmp_path / "sums.csv"
    rows = [f"{expression},{text}" for expression, text in sums]
    problems.write_text("\n".join(["python_expression,natural_language", *rows]) + "\n")
    words = ["bench", "soak", "--minutes", "2", "--policy", str(half_right), "--problems", str(problems), "--json"]
    try:
        main(words)
    except SystemExit:
        said = capsys.readouterr().err
        broken = "; ".join(line for line in said.splitlines() if line.startswith("FAILED"))
        pytest.fail(f"{broken}\n{said}")  # of which a summary shows the first line
    found = json.loads(capsys.readouterr().out)
    assert found["broken"] == []
    assert len(found["soak"]["faults"]) >= 4
    assert found["soak"]["steps"] > 3
    named = {check["name"] for check in found["soak"]["checks"]}
    assert named > {"every step stands once in metrics.jsonl", "every step stands once in MLflow"}
    assert "all processes are gone" in named
    assert len(found["soak"]["memory"]) > 5


def test_a_seed_is_a_list_of_faults_of_all_kinds_in_turn() -> None:
    plan = planned(0, 30 * 60, 20.0)
    assert plan == planned(0, 30 * 60, 20.0) != planned(1, 30 * 60, 20.0)
    assert [fault.at for fault in plan] == [20.0 * at for at in range(1, 90)]
    for first in range(0, len(plan) - len(FAULTS), len(FAULTS)):
        assert {fault.what for fault in plan[first : first + len(FAULTS)]} == FAULTS.keys()
    assert all(AWAY[0] <= fault.seconds <= AWAY[1] < 20 for fault in plan)
    assert [fault.at for fault in planned(0, 60, 20.0)] == [20.0, 40.0]


def test_a_process_is_known_by_its_command_and_by_what_has_started_it() -> None:
    worker = ["python", "-c", "from flows.cli import main; main()", "worker", "--roles", "trainer", "--name", "t"]
    assert kind_of(worker, "") == "rlvf worker t"
    assert kind_of(["python", "-B", "-c", "from multiprocessing.spawn import spawn_main; x()"], "a") == "a's process"
    forks = ["python", "-B", "-c", "from multiprocessing.forkserver import main; main(5, 7)"]
    assert kind_of(forks, "rlvf worker t") == "rlvf worker t's fork server"
    assert kind_of(forks, "rlvf worker t's fork server") == "rlvf worker t's process"
    assert kind_of(["python", "-P", "-m", "infra.services.serve", "prefect", "--port", "1"], "") == (
        "infra.services.serve prefect"
    )
    assert kind_of(["python", "-m", "distributed.cli.dask_scheduler", "--host"], "") == "distributed.cli.dask_scheduler"
    serve = ["python", "-I", "/x/infra/services/supervisor.py", "12", "{}", "python", "-m", "mlflow", "server"]
    assert kind_of(serve, "") == "supervisor of mlflow server"
    assert kind_of(["python", "-c", "from multiprocessing.resource_tracker import main"], "a") == ""


def found_of(tmp_path: Path, taken: list[float], kept: list[int], home: list[int]) -> dict[str, bool]:
    """Which checks are passed of a process that took so many MB, one reading after the other."""
    of = Footprint(MarkedHome(tmp_path), tmp_path, 0.0)
    of._read["one"] = [Reading(7, at, int(mb * 1e6)) for at, mb in enumerate(taken)]
    of._disk = {"weights and checkpoints": kept, "the home": home}
    return {check.name: check.passed for check in of.checks(10)}


def test_what_grows_is_found(tmp_path: Path) -> None:
    flat, memory = [100.0 + at % 5 for at in range(30)], "memory of one"
    kept, home = "weights and checkpoints are bounded", "disk of the home"
    assert set(found_of(tmp_path, flat, [5] * 30, [10**6] * 30).values()) == {True}
    assert not found_of(tmp_path, [100.0 + at for at in range(30)], [5] * 30, [1] * 30)[memory]
    assert found_of(tmp_path, [10.0 + at / 10 for at in range(30)], [5] * 30, [1] * 30)[memory]  # MB that are noise
    assert not found_of(tmp_path, flat, list(range(1, 31)), [1] * 30)[kept]
    assert not found_of(tmp_path, flat, [33] * 15 + [44] * 15, [1] * 30)[kept]  # a checkpoint that is not removed
    written = [33, 36, 33] * 9 + [33, 46, 33]  # one while it is written, which is seen now and then
    assert found_of(tmp_path, flat, written, [1] * 30)[kept]
    assert not found_of(tmp_path, flat, [5] * 30, [10**6 * at for at in range(30)])[home]
    nothing = found_of(tmp_path, [1.0], [], [])
    assert nothing == {"memory was read": False, kept: False, home: False}


def test_what_a_process_takes_is_read_and_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = tmp_path / "run"
    for name, count in (("weights", 300), ("state", 200), ("rollouts", 50)):
        (run / name).mkdir(parents=True)
        (run / name / "file").write_bytes(bytes(count))
    place = MarkedHome(tmp_path)
    with place.started("status", "--home", "nowhere", log=tmp_path / "log") as process:
        monkeypatch.setattr(footprint, "EVERY", 0.02)
        of = Footprint(place, run, warm=0.0)
        with of.watching():
            deadline = time.monotonic() + 20
            while not of._read and process.poll() is None and time.monotonic() < deadline:
                time.sleep(0.01)
    assert list(of._read) == ["rlvf status"]
    assert of._read["rlvf status"][0].taken > 10**6
    assert of._disk["weights and checkpoints"][0] >= 500
    assert of._disk["the home"][0] >= of._disk["weights and checkpoints"][0] + 50
    assert os.getpid() not in {each.pid for each in of._read["rlvf status"]}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--minutes 0.5", "--minutes 0.5: give time for a fault, 40 s or more"),
        ("--minutes nan", "--minutes nan: give time for a fault"),
        ("--every 0", "--every 0: give 1 to 3600"),
        ("--seed -1", "--seed -1: give 0 or more"),
        ("--staleness -2", "--staleness -2: give 0 to 64"),
        ("--staleness 65", "--staleness 65: give 0 to 64"),
        ("--policy ./none", "./none"),
    ],
)
def test_a_mistake_is_one_line(words: str, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "soak", *words.split()])
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


def test_a_soak_that_found_something_ends_with_1_and_leaves_its_home(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from flows.benches import soak
    from flows.benches.check import Check

    checks = Check("all", True, "10"), Check("memory of x", False, "1 → 9 MB")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(soak, "soaked", lambda *_: Soaked(60.0, 10, (), checks, {}, {}))
    with pytest.raises(SystemExit) as ended:
        main(["bench", "soak"])
    assert ended.value.code == 1
    out, err = capsys.readouterr()
    assert "FAILED  memory of x: 1 → 9 MB\n" in out
    (home,) = tmp_path.iterdir()
    assert err.startswith(f"its home is kept, with all logs: {home}\n")


def test_a_reading_that_fails_is_no_silence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> list[object]:
        raise LookupError("unreadable")

    monkeypatch.setattr(footprint, "EVERY", 0.001)
    monkeypatch.setattr(footprint, "marked", fail)
    with pytest.raises(LookupError, match="unreadable"), Footprint(MarkedHome(tmp_path), tmp_path, 0.0).watching():
        time.sleep(0.1)
