"""A process of a pool: it ends with its worker and has none of its files."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from rl.records import Problem
from rl.verifiers.isolation import family
from rl.verifiers.isolation.pool import Pool

WORKER = """
import sys, threading
from rl.records import Problem
from rl.verifiers.isolation.pool import Pool
pool = Pool(sys.argv[1], "r.py", "reward", seconds=100, memory_mb=512, size=1)
pool.warm()
threading.Thread(target=pool.judge, args=([Problem("", "", "")], [""]), daemon=True).start()
print("called", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(
    "body", ["while True: pass", pytest.param("import time; time.sleep(1000)", marks=pytest.mark.slow)]
)
def test_a_worker_that_is_killed_takes_its_processes_along(body: str) -> None:
    text = f"def reward(problem, completion):\n    {body}\n"
    worker = subprocess.Popen(
        [sys.executable, "-c", WORKER, text], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert worker.stdout is not None
    assert worker.stdout.readline() == "called\n"
    (child,) = psutil.Process(worker.pid).children()
    worker.kill()
    worker.communicate()
    assert child.wait(timeout=10) is None or not child.is_running()


def test_files_of_the_parent_stay_closed() -> None:
    ours, theirs = socket.socketpair()
    os.set_inheritable(ours.fileno(), True)
    with ours, theirs:
        counting = "import os\ndef reward(p, c): return float(len(os.listdir('/dev/fd')))\n"
        if not Path("/dev/fd").exists():
            pytest.skip("no /dev/fd here")
        inner = Pool(counting, "r.py", "reward", seconds=1, memory_mb=512, size=1)
        try:
            (verdict,) = inner.judge([Problem("what?", "42", "p.csv:2", {"level": 3})], [""])
        finally:
            inner.close()
    assert verdict.reward <= 5  # the three standard ones, the channel, the listing itself


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
def test_a_process_may_have_any_name() -> None:
    named = "import ctypes, sys; ctypes.CDLL(None).prctl(15, b'a\\x0bb\\x1ec'); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", named], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdin is not None
        assert other.stdout is not None
        other.stdout.readline()
        before = family.processes_of(None)
        assert family.status(other.pid)["Uid"].split()[0] == str(os.getuid())
        other.stdin.close()
    assert before > 0
