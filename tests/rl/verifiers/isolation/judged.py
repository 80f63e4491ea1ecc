"""Run by test_attributes.py as the machine's worker is: one pool that judges each completion of a list, and what the
verifier has made of a file, a folder and a process outside that are its own user's.

Arguments: a sandbox, and JSON: `text` of the verifier, `completions`. Prints JSON.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from rl.records import Problem
from rl.verifiers.isolation import sandbox
from rl.verifiers.isolation.leftovers import PREFIX
from rl.verifiers.isolation.pool import Pool
from rl.verifiers.isolation.process import Cell


def main() -> None:
    wanted, given = sys.argv[1], json.loads(sys.argv[2])
    if lacks := sandbox.missing(wanted):
        print(json.dumps({"missing": lacks}))
        return
    folder = Path(tempfile.mkdtemp(dir=Path.cwd(), prefix="outside-"))
    mine = folder / "mine"
    mine.write_text("mine")
    mine.chmod(0o600)
    other = subprocess.Popen(["sleep", "100"])
    problem = Problem("", "", "here", {"folder": str(folder), "mine": str(mine), "other": other.pid})

    def state() -> list[object]:
        limits, at = resource.prlimit(other.pid, resource.RLIMIT_NOFILE), [folder.stat(), mine.stat()]
        nice = os.getpriority(os.PRIO_PROCESS, other.pid)
        files = [[one.st_mode, one.st_mtime, one.st_ctime] for one in at]
        return [files, limits, nice, os.getpriority(os.PRIO_PROCESS, 0), sorted(os.sched_getaffinity(other.pid))]

    before = state()
    pool = Pool(given["text"], "r.py", "reward", seconds=20, memory_mb=1024, size=1, cell=Cell(wanted))
    found: dict[str, object] = {}
    for name in given["completions"]:
        if name == "starts":
            for _ in range(100):
                threading.Thread(target=time.sleep, args=(30,), daemon=True).start()
        (verdict,) = pool.judge([problem], [name])
        found[name] = [None if verdict.error else verdict.reward, verdict.error or verdict.reason]
    around = [one.stat() for one in Path(tempfile.gettempdir()).glob(f"{PREFIX}*")]
    found["around"] = [[one.st_uid == os.getuid(), one.st_mode & 0o7077] for one in around]
    found["unchanged"] = state() == before
    pool.close()
    other.kill()
    print(json.dumps(found), flush=True)
    os._exit(0)


if __name__ == "__main__":
    main()
