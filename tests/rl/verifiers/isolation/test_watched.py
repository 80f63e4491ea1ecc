"""Processes that have not run since are not measured again."""

import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from rl.verifiers.isolation import family, holdings
from rl.verifiers.isolation.holdings import SOCKET_BYTES
from rl.verifiers.isolation.watched import FORK_BYTES, PROCESSES, Bounds, TooMuchError, Watched

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="is measured on Linux alone")

ECHO = "import sys\nheld = []\nfor line in sys.stdin: held.append(bytearray(int(line))); print('done', flush=True)"


@pytest.fixture
def echo() -> Iterator[subprocess.Popen[str]]:
    with subprocess.Popen(
        [sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        ask(process, 1)
        yield process
        process.kill()


def ask(process: subprocess.Popen[str], size: int) -> None:
    """Have it hold so many bytes more."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{size}\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


def settled(pid: int) -> object:
    """Its activity when it waits again."""
    end = time.monotonic() + 10
    while (found := family.activity([pid])) is None or found != family.activity([pid]):
        assert time.monotonic() < end
        time.sleep(0.01)
    return found


def test_what_has_run_since_is_seen(echo: subprocess.Popen[str]) -> None:
    before = settled(echo.pid)
    assert settled(echo.pid) == before
    ask(echo, 1)
    assert settled(echo.pid) != before
    assert family.activity([echo.pid, 2**22 + 1]) is None  # one that is not there
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as spins:
        time.sleep(0.3)
        assert family.activity([spins.pid]) is None or family.activity([spins.pid]) != family.activity([spins.pid])
        spins.kill()


def test_it_is_measured_again_when_it_has_run(
    echo: subprocess.Popen[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    measured: list[int] = []

    def counted(of: Callable[..., object]) -> Callable[..., object]:
        return lambda *arguments: measured.append(1) or of(*arguments)

    monkeypatch.setattr(holdings, "held", counted(holdings.held))
    monkeypatch.setattr(family, "below", lambda _: [echo.pid])
    watched = Watched(echo.pid, tmp_path, False, None, Bounds(256, 0))
    settled(echo.pid)
    share = watched.measure()
    assert 0 < share < 0.5
    assert watched.measure() == share
    assert len(measured) == 1
    ask(echo, 10 * 2**20)
    settled(echo.pid)
    assert watched.measure() > share + 0.03
    assert len(measured) == 2
    ask(echo, 120 * 2**20)
    settled(echo.pid)
    assert [watched.measure() > 0.5 for _ in range(3)] == [True] * 3
    assert len(measured) == 5  # what is near its bound is always looked at
    ask(echo, 200 * 2**20)
    with pytest.raises(TooMuchError, match="held more than 256 MB of memory"):
        watched.measure()


def test_forks_have_memory_a_process_and_a_socket_each(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bounds = Bounds(64, 32)
    assert (bounds.memory_bytes, bounds.processes) == (64 * 2**20 + 32 * FORK_BYTES, PROCESSES + 32)
    held = holdings.Held(own=bounds.memory_bytes, tasks=40, sockets={b"%d" % number for number in range(32)})
    monkeypatch.setattr(holdings, "held", lambda *_: ([], held))
    watched = Watched(1, tmp_path, False, None, bounds)
    assert watched.measure() == 1.0
    held.sockets.add(b"one more")
    with pytest.raises(TooMuchError):
        watched.measure()
    assert SOCKET_BYTES > 0
