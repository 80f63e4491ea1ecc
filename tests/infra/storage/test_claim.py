"""A lock's owner of whom nothing can be read, and one who cannot write that he has ended."""

import json
import sys
import uuid
from dataclasses import asdict, replace
from pathlib import Path

import psutil
import pytest

from infra.storage.claim import Claim
from infra.storage.lock import acquire, held
from tests.processes import started

pytestmark = pytest.mark.usefixtures("quick")


def test_a_storage_that_goes_away_at_the_end_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    class EndpointConnectionError(Exception):  # as botocore's: no OSError
        pass

    def away(*_: object) -> None:
        raise EndpointConnectionError("Could not connect to http://me:pa55@store:9000")

    lines: list[str] = []
    run = f"memory://{uuid.uuid4().hex}/run"
    with held(run, lines.append):
        monkeypatch.setattr("infra.storage.place.write_text", away)
    (line,) = lines
    assert (
        line == f"{run} could not be released (Could not connect to http://***@store:9000); who wants it next waits 2 s"
    )


@pytest.mark.skipif(
    sys.platform != "linux", reason="elsewhere a process's start is told by the clock alone: needs Linux"
)
def test_setting_the_clock_ends_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = Claim.of_this_process()
    told = psutil.Process.create_time
    monkeypatch.setattr(psutil.Process, "create_time", lambda process: told(process) + 3600)
    assert not claim.is_gone
    assert replace(claim, started=claim.started + 5).is_gone  # another process of that number


def test_a_process_that_only_its_user_sees_is_not_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    claim = Claim.of_this_process()

    def hidden(pid: int) -> None:  # as psutil finds another user's where /proc is mounted with hidepid
        raise psutil.NoSuchProcess(pid)

    monkeypatch.setattr(psutil, "Process", hidden)
    assert not claim.is_gone
    dead = started(sys.executable, "-c", "")
    with dead as process:
        process.wait()
    assert replace(claim, pid=process.pid).is_gone


def test_a_killed_owner_s_flow_run_is_known_until_another_trains(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = str(tmp_path / "run")

    def killed(flow_run: str) -> None:
        lock = acquire(run, print)
        lock.train_in(flow_run)
        lock._over.set()  # no heartbeat, no release

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.yaml").touch()
    killed("first")
    monkeypatch.setattr(Claim, "is_gone", True)
    with held(run, print) as refused:  # by an option, say: it trains nothing
        assert refused.killed == "first"
    with held(run, print) as lock:
        assert lock.killed == "first"
        lock.new_fence()
        lock.new_fence()
        assert lock.killed == "first"
        lock.train_in("second")
        assert lock.killed == ""
    with held(run, print) as lock:  # the second ended in order
        assert lock.killed == ""


@pytest.mark.slow
@pytest.mark.parametrize(
    "damage",
    [
        {"since": 1e30},
        {"since": "soon"},
        {"pid": "many"},
        {"pid": -1},
        {"started": "then"},
    ],
)
def test_a_damaged_claim_counts_as_one_without_a_sign(tmp_path: Path, damage: dict[str, object]) -> None:
    run = tmp_path / "run"
    (run / "lock").mkdir(parents=True)
    claim = asdict(Claim.of_this_process()) | {"state": "held"} | damage
    (run / "lock" / "00000001.json").write_text(json.dumps(claim))
    lines: list[str] = []
    with held(str(run), lines.append) as mine:
        assert mine.fence.epoch == 2
    assert len(lines) == 1
    assert lines[0].startswith(f"somebody holds {run} and gives no sign")
