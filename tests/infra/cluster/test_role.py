"""The processes of a machine's roles."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

KILLED = """
import multiprocessing
import os
import signal
from infra.cluster.role import start_resource_tracker

def work():
    kept = multiprocessing.Lock()
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    start_resource_tracker()
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
    assert child.exitcode == -signal.SIGKILL
"""


def test_what_a_killed_worker_leaves_behind_is_no_line_on_the_terminal(tmp_path: Path) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    # the tracker outlives the process, and its stderr is read until it ends
    ended = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=120, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "", "")
