"""What a pool of processes is told, tells, and gives up."""

import socket
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from rl.records import Problem, Verdict
from rl.verifiers.isolation import process, sandbox
from rl.verifiers.isolation.pool import Pool
from rl.verifiers.isolation.process import Cell, LoadError, Process
from rl.verifiers.isolation.sandbox import AUTO, SandboxError, chosen
from rl.verifiers.verdicts import NOT_JUDGED, NOT_TRIED

PROBLEM = Problem("what?", "42", "p.csv:2", {"level": 3})


def test_only_the_variables_that_are_named_are_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_KEY", "k1")
    monkeypatch.setenv("OTHER_KEY", "k2")
    text = "import os\ndef reward(p, c): return 1, f\"{os.environ['JUDGE_KEY']} {os.environ.get('OTHER_KEY')}\"\n"
    cell = Cell(chosen(AUTO), env=["JUDGE_KEY"])
    pool = Pool(text, "r.py", "reward", seconds=5, memory_mb=512, size=1, cell=cell)
    assert pool.judge([PROBLEM], [""])[0].reason == "k1 None"
    pool.close()
    monkeypatch.delenv("JUDGE_KEY")
    pool = Pool(text, "r.py", "reward", seconds=5, memory_mb=512, size=1, cell=cell)
    with pytest.raises(LoadError, match=r"verifier\.env: JUDGE_KEY is not set on "):
        pool.warm()
    pool.close()


def test_what_is_printed_is_in_a_log_that_a_failure_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "MAX_LOG", 10_000)
    text = (
        "def reward(p, c):\n    print('looked at', c * 100)\n    if c == 'bad': raise KeyError(c)\n"
        "    while c == 'loop': pass\n    return 1\n"
    )
    log = tmp_path / "logs" / "verifier-r.log"
    pool = Pool(text, "r.py", "reward", seconds=1, memory_mb=512, size=1, cell=Cell(chosen(AUTO), log=log))
    good, bad, hung = pool.judge([PROBLEM] * 3, ["good", "bad", "loop"])
    assert good == Verdict(1.0, "right", {})
    assert bad.error == f"r.py:3: KeyError: 'bad'; log: {socket.gethostname()}:{log}"
    assert hung.error.endswith(f"took longer than 1 s (p.csv:2); log: {socket.gethostname()}:{log}")
    said = log.read_text()
    for words in ("looked at good", "looked at bad", "looked at loop", "p.csv:2:", "Traceback", "KeyError: 'bad'"):
        assert words in said
    assert log.stat().st_mode & 0o777 == 0o600
    pool.judge([PROBLEM] * 100, ["good"] * 100)
    pool.close()
    assert 0 < log.stat().st_size < 20_000  # it began anew


def test_what_a_sandbox_denies_says_what_to_do() -> None:
    text = (
        "import socket, os\ndef reward(p, c):\n    if c == 'net': socket.getaddrinfo('example.org', 443)\n"
        "    if c == 'write': raise OSError(30, 'Read-only file system')\n"
        "    return os.path.isdir(os.environ['TMPDIR'])\n"
    )
    if chosen(AUTO) != "bubblewrap":
        pytest.skip("needs bwrap and user namespaces")
    pool = Pool(text, "r.py", "reward", seconds=5, memory_mb=512, size=1)
    net, write, fine = pool.judge([PROBLEM] * 3, ["net", "write", "fine"])
    pool.close()
    assert net.error.startswith("r.py:3: gaierror")
    assert net.error.endswith("; its sandbox has no network: --verifier.network true")
    assert write.error.endswith("; its sandbox lets it write to $TMPDIR alone")
    assert fine.reward == 1


def test_a_file_of_a_closed_place_says_how_to_show_it(tmp_path: Path) -> None:
    if chosen(AUTO) == "none":
        pytest.skip("needs a sandbox")
    (tmp_path / "table").write_text("1")
    cell = Cell(chosen(AUTO), hidden=[str(tmp_path)])
    pool = Pool("def reward(p, c):\n    return float(open(c).read())\n", "r.py", "reward", 5, 512, size=1, cell=cell)
    there, lacking = pool.judge([PROBLEM] * 2, [str(tmp_path / "table"), str(tmp_path / "other")])
    pool.close()
    assert there.error.endswith("; its sandbox shows nothing of it: --verifier.reads")
    assert lacking.error.endswith("other'")


def test_a_sandbox_that_the_machine_lacks_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    sandbox.missing.cache_clear()
    try:
        with pytest.raises(
            SandboxError, match=r"verifier.sandbox: 'bubblewrap' does not work .* apt install bubblewrap"
        ):
            chosen("bubblewrap")
        assert chosen(AUTO) != "bubblewrap"
    finally:
        sandbox.missing.cache_clear()


KEPT = """
import os, time
calls, who = 0, os.urandom(8).hex()
def reward(problem, completion):
    global calls
    calls += 1
    time.sleep(0.5 if completion == "wait" else 0)
    return float(calls), who
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[Process]:
    """The processes that pools start meanwhile."""
    those: list[Process] = []

    class Counted(Process):
        def __init__(self, load: dict[str, Any], cell: Cell) -> None:
            super().__init__(load, cell)
            those.append(self)

    monkeypatch.setattr("rl.verifiers.isolation.pool.Process", Counted)
    return those


def _processor_seconds() -> float:
    """Of this process and all that is below it."""
    return time.process_time() + sum(sum(one.cpu_times()[:2]) for one in psutil.Process().children(recursive=True))


@pytest.mark.slow
def test_processes_are_kept_and_a_call_costs_little(started: list[Process]) -> None:
    pool = Pool(KEPT, "r.py", "reward", seconds=60, memory_mb=400, size=2)  # so that no call takes too long under load
    try:
        waited = pool.judge([PROBLEM] * 8, ["wait"] * 8)  # at the same time: in all processes that the pool may have
        began = _processor_seconds()
        verdicts = pool.judge([PROBLEM] * 400, ["counted"] * 400)
        assert _processor_seconds() - began < 400 * 0.005  # 0.1 ms each in wall time, when nothing else runs
        assert all(process.runs() for process in started)
    finally:
        pool.close()
    assert len(started) == 2
    assert len({verdict.reason for verdict in waited}) == 2
    assert {verdict.reason for verdict in verdicts} <= {verdict.reason for verdict in waited}
    assert max(verdict.reward for verdict in verdicts) > 100
    assert not any(process.runs() for process in started)


@pytest.mark.slow
def test_callers_at_the_same_time_share_the_processes_of_a_pool(started: list[Process]) -> None:
    pool = Pool(KEPT, "r.py", "reward", seconds=60, memory_mb=400, size=1)
    with ThreadPoolExecutor(4) as callers:
        asked = [callers.submit(pool.judge, [PROBLEM] * 2, ["wait"] * 2) for _ in range(4)]
        verdicts = [verdict for one in asked for verdict in one.result()]
    pool.close()
    assert sorted(verdict.reward for verdict in verdicts) == [1, 2, 3, 4, 5, 6, 7, 8]
    assert len(started) == 1


HANGING = "def reward(p, c):\n    while c == 'loop': pass\n    return 1\n"


@pytest.mark.slow
def test_a_verifier_that_hangs_is_given_up_and_tried_again_with_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl.verifiers.isolation.pool.IN_A_ROW", 4)
    pool = Pool(HANGING, "r.py", "reward", seconds=0.3, memory_mb=512, size=2)
    several = [PROBLEM, replace(PROBLEM, source="p.csv:3")]
    began = time.perf_counter()
    reasons = [verdict.reason for verdict in pool.judge(several * 250, ["loop"] * 500)]
    assert time.perf_counter() - began < 60  # and not 75 s and more
    assert 4 <= reasons.count("timeout") <= 5
    assert reasons.count("timeout") + reasons.count(NOT_TRIED) == 500
    (*_, last) = again = pool.judge([PROBLEM] * 100, ["loop"] * 100)
    assert [verdict.reason for verdict in again] == ["timeout"] + [NOT_TRIED] * 99
    assert (
        last.error
        == "r.py: reward took longer than 0.3 s 4 times in a row, on several problems; the rest was not tried"
    )
    verdicts = pool.judge([PROBLEM] * 20, ["right", "loop"] * 10)  # never so many in a row
    pool.close()
    assert [verdict.reason for verdict in verdicts] == ["right", "timeout"] * 10


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 3])
def test_one_problem_on_which_it_hangs_takes_the_verdicts_of_no_other(
    monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    monkeypatch.setattr("rl.verifiers.isolation.pool.IN_A_ROW", 6)
    pool = Pool(HANGING, "r.py", "reward", seconds=0.1, memory_mb=512, size=size)
    other = replace(PROBLEM, source="p.csv:3")
    problems, completions = [PROBLEM] * 40 + [other] * 40, ["loop"] * 40 + ["right"] * 40
    for _ in range(2):  # it is tried again in another call
        verdicts = pool.judge(problems, completions)
        reasons = [verdict.reason for verdict in verdicts]
        assert reasons[40:] == ["right"] * 40
        assert 6 <= reasons.count("timeout") <= 6 + size - 1  # some are on their way when it is given up
        assert reasons.count("timeout") + reasons.count(NOT_JUDGED) == 40
    said = "took longer than 0.1 s 6 times in a row on one problem; its other completions were not tried (p.csv:2)"
    assert verdicts[39].error == f"r.py: reward {said}"
    pool.close()


def test_a_run_under_landlock_says_what_stays_open_without_seccomp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rl.verifiers.isolation.seccomp.works", lambda: False)
    pool = Pool("", "r.py", "reward", seconds=1, memory_mb=512, size=1, cell=Cell(sandbox.LANDLOCK))
    pool.close()
    assert "Unix sockets and UDP are open" in pool.about
    assert "apt install bubblewrap" in pool.about
