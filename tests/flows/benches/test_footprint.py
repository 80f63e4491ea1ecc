"""What counts as the memory of a process."""

import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from flows.benches.footprint import _own

FORKED = """
import os, sys
shared = bytearray(b"x" * 64_000_000)
if os.fork():
    os.wait()
    sys.exit()
print(os.getpid(), flush=True)
sys.stdin.readline()
for page in range(0, len(shared), 4096):
    shared[page] = 0
print("written", flush=True)
sys.stdin.readline()
more = b"y" * 64_000_000
print("more", flush=True)
sys.stdin.readline()
"""


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="no /proc/PID/smaps_rollup")
def test_pages_that_are_no_longer_shared_are_no_growth_and_more_is() -> None:
    with subprocess.Popen([sys.executable, "-c", FORKED], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        forked = psutil.Process(int(child.stdout.readline()))
        found = [(_own(forked), forked.memory_full_info().uss)]
        for _ in range(2):
            child.stdin.write(b"\n")
            child.stdin.flush()
            child.stdout.readline()
            found.append((_own(forked), forked.memory_full_info().uss))
        child.stdin.close()
    (began, uss), (written, uss_written), (more, _) = found
    assert uss_written - uss > 50e6  # by which growth was measured before
    assert abs(written - began) < 2e6
    assert 60e6 < more - written < 70e6
    with pytest.raises(psutil.NoSuchProcess):
        _own(forked)
