"""What a Prefect worker starts: the process of a flow run, and what is said of one that dies."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.processes import started, until

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Launched:
    """What a Prefect worker starts, for a flow whose module does as it says."""

    process: subprocess.Popen[str]
    pid: Path  # where the module writes its process
    state: Callable[[], Any]


@pytest.fixture
def launched(lab: Any, tmp_path: Path) -> Iterator[Callable[[str], Launched]]:
    with ExitStack() as running:

        def launch(source: str) -> Launched:
            pid = tmp_path / "pid"
            (tmp_path / "module_of_a_flow.py").write_text(
                f"import os, signal, time\nopen({str(pid)!r}, 'w').write(str(os.getpid()))\n{source}\n"
            )
            flow = lab.api("flows/", {"name": "of a test"})["id"]
            run = lab.api("flow_runs/", {"flow_id": flow, "state": {"type": "PENDING"}})["id"]
            process = running.enter_context(
                started(
                    *(sys.executable, "-P", "-m", "infra.services.launch", "module_of_a_flow:train"),
                    env={**os.environ, **lab.access, "PYTHONPATH": str(tmp_path), "PREFECT__FLOW_RUN_ID": run},
                )
            )
            return Launched(process, pid, lambda: lab.api(f"flow_runs/{run}")["state"])

        yield launch


@pytest.mark.parametrize(
    ("source", "said"),
    [
        pytest.param(
            "import nosuchmodule",
            "Crashed: ModuleNotFoundError: No module named 'nosuchmodule' (",
            marks=pytest.mark.slow,
        ),
        ("train = 3", "Crashed: TypeError: "),  # no flow, says the engine
        pytest.param("raise SystemExit('no license')", "Crashed: SystemExit: no license", marks=pytest.mark.slow),
        ("os.kill(os.getpid(), signal.SIGKILL)", "Crashed: its process was ended by SIGKILL; where nobody did that,"),
        pytest.param("os._exit(3)", "Crashed: its process ended with exit code 3", marks=pytest.mark.slow),
    ],
)
def test_a_run_that_crashes_before_its_flow_begins_says_why(
    launched: Callable[[str], Launched], source: str, said: str
) -> None:
    run = launched(source)
    until(lambda: run.state()["type"] == "CRASHED")
    named = run.state()
    assert named["name"].startswith(said), named
    if source.startswith("import"):  # once is enough: it takes its time
        until(lambda: run.state()["name"] == "Crashed", about=lambda: str(run.state()))  # what the page filters by
        assert run.process.wait(60) == 0  # the worker has nothing to add
        assert run.state()["message"] == named["message"] == named["name"].removeprefix("Crashed: ")


def test_who_stops_a_run_stops_its_engine(launched: Callable[[str], Launched]) -> None:
    asked = launched("time.sleep(100)")
    until(lambda: asked.pid.exists() and bool(asked.pid.read_text()))
    asked.process.terminate()
    assert asked.process.wait(90) == 128 + signal.SIGTERM
    assert asked.state()["type"] == "PENDING"  # whoever asked says what that means


def test_an_engine_ends_with_the_process_that_its_worker_knows(launched: Callable[[str], Launched]) -> None:
    killed = launched("time.sleep(100)")
    until(lambda: killed.pid.exists() and bool(killed.pid.read_text()))
    killed.process.kill()

    def ended() -> bool:
        try:
            return psutil.Process(int(killed.pid.read_text())).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    until(ended)
