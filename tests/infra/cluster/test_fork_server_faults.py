"""What forked workers do when the terminal sends Ctrl-C, and when their server dies."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

linux = pytest.mark.skipif(sys.platform != "linux", reason="only Linux forks")
SCRIPT = """
import os, signal, sys, time
from multiprocessing import forkserver
from pathlib import Path
from infra.cluster.cluster import cluster, prepare
from infra.cluster.cluster_config import ClusterConfig

def main():
    config = ClusterConfig(device="cpu")
    if sys.argv[2] == "ctrl-c":
        prepare(config, {})
    with cluster(config, log_dir=Path(sys.argv[1]), preload={}) as client:
        before = client.run(os.getpid)
        server = forkserver._forkserver._forkserver_pid
        if sys.argv[2] == "ctrl-c":  # as a terminal, to all of the group
            for pid in (*before.values(), server):
                os.kill(pid, signal.SIGINT)
            time.sleep(5)
            print("there", len(before.keys() & client.run(os.getpid).keys()), "of", len(before))
        else:
            os.kill(server, signal.SIGKILL)
            time.sleep(10)
            print("there", len(client.run(os.getpid)), "of", len(before))

if __name__ == "__main__":
    main()
"""


def run(folder: Path, fault: str) -> str:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, str(script), str(folder), fault]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=120)
    return next((line for line in done.stdout.splitlines() if line.startswith("there")), done.stderr[-2000:])


@pytest.mark.slow
@linux
def test_ctrl_c_leaves_workers_to_the_flow_whose_imports_began_ahead(tmp_path: Path) -> None:
    there = run(tmp_path, "ctrl-c")
    assert there.split()[1] == there.split()[3], there


@pytest.mark.slow
@linux
def test_workers_come_back_when_their_server_was_killed(tmp_path: Path) -> None:
    there = run(tmp_path, "killed")
    assert there.split()[1] == there.split()[3], there
