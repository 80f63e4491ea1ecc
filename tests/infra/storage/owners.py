"""Owners of a run: one here, one in another process, one on another machine."""

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from infra.storage.claim import Claim
from infra.storage.lock import RunLock, acquire
from tests.processes import started

DEAD = 2.0  # seconds, of an owner without a sign
HOLDER = """
import sys
from pathlib import Path
from infra.runs import checkpoints
from infra.storage import lock
lock.BEAT_SECONDS = 0.1
lock.SETTLE_SECONDS = 0.1
lock.SURE_SECONDS = 0.5
run, folder = sys.argv[1], Path(sys.argv[2])
mine = lock.acquire(run, print)
print("held", flush=True)
step = 0
while True:
    step += 1
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "model.safetensors").write_text(f"the first owner's {step}\\n" * 2000)
    try:
        checkpoints.save(run, step, folder, {"owner": "first"}, 2, patience=5, fence=mine.fence)
    except lock.LockLostError as error:
        print(error, flush=True)
        break
    print(step, flush=True)
"""


@contextmanager
def taken(run: str) -> Iterator[RunLock]:
    mine = acquire(run, print)
    try:
        yield mine
    finally:
        mine.release()


@contextmanager
def other_process(run: str, folder: Path) -> Iterator["subprocess.Popen[str]"]:
    """It holds the run and writes checkpoint after checkpoint."""
    with started(sys.executable, "-c", HOLDER, run, folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as holder:
        assert holder.stdout
        assert holder.stdout.readline() == "held\n"
        yield holder


def of_another_machine() -> Claim:
    """What lies there when the owner of a lock has lost its machine."""
    return replace(Claim.of_this_process(), machine="another", host="jetson", user="ann", state="held")
