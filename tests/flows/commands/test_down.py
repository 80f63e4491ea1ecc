"""`rlvf down` ends an `rlvf up` and nothing else."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from flows.cli import main
from infra.services.addresses import Addresses, Up, the_only_up, write_up
from tests.processes import started


def test_down_signals_no_process_of_another_machine(home_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with the_only_up(home_folder), started(sys.executable, "-c", "import time; time.sleep(100)") as innocent:
        write_up(home_folder, Up(innocent.pid, True, Addresses(), machine="nas 1 2"))
        with pytest.raises(SystemExit) as refused:
            main(["down"])
        assert refused.value.code == 2
        assert innocent.poll() is None
    assert f"rlvf up of {home_folder} runs on nas: rlvf down there" in capsys.readouterr().err


BEGINNING = """
import fcntl, os, sys, time
from pathlib import Path
from infra.services.addresses import Addresses, Up, write_up
home = Path(sys.argv[1])
(home / "services").mkdir(parents=True)
lock = (home / "services" / "up.lock").open("a")
fcntl.flock(lock, fcntl.LOCK_EX)
print("begun", flush=True)
time.sleep(1)
write_up(home, Up(os.getpid(), False, Addresses()))
time.sleep(100)
"""


def test_down_ends_an_up_that_has_not_said_yet_which_process_it_is(home_folder: Path) -> None:
    with started(sys.executable, "-c", BEGINNING, home_folder, stdout=subprocess.PIPE) as up:
        assert up.stdout is not None
        assert up.stdout.readline() == "begun\n"
        main(["down"])
        assert up.wait(90) == -signal.SIGTERM
