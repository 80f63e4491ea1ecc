"""docs/tutorial.md, command by command, on two machines that share nothing but a bucket."""

import re
import shlex
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from flows.finetune_config import SftConfig
from flows.sft import warm_up_spec
from infra.weights.whole import keep_whole
from tasks.warm_up import warm_up_uri
from tests.links.network import Machine, Network
from tests.processes import until

ROOT = Path(__file__).parents[2]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
COMMANDS = re.findall(r"^(laptop|pc)\$ (.+)$", TUTORIAL, flags=re.MULTILINE)
(REWARD,) = re.findall(r"^```python\n(.+?)^```$", TUTORIAL, flags=re.MULTILINE | re.DOTALL)
BY_OTHERS = ("git clone", "make setup", ". .venv")  # what brought us here has done these
STAYING = ("rlvf worker",)
pytestmark = pytest.mark.slow
LIST = (
    "import os; from infra.storage.place import names; "
    "print(names(os.environ['RLVF_STORAGE'] + '/runs/mine/evaluations'))"
)


class Shell:
    """A shell on a machine that keeps its variables from command to command, as a person's does."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self._process = machine.start("bash", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)

    def run(self, command: str, seconds: float = 180) -> str:
        """What it prints. It must succeed."""
        print(f"{self.machine.name}$ {command}", flush=True)
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        mark = f"done-{time.monotonic_ns()}"
        process.stdin.write(f"{command}\necho {mark} $?\n")
        process.stdin.flush()
        lines = []
        deadline = time.monotonic() + seconds
        while not (line := process.stdout.readline()).startswith(mark):
            assert line, f"the shell ended: {''.join(lines)}"
            assert time.monotonic() < deadline, f"{command}: {''.join(lines)}"
            print("   ", line, end="", flush=True)
            lines.append(line)
        assert line.split()[1] == "0", f"{command}: {''.join(lines)}"
        return "".join(lines)

    def stay(self, command: str) -> Path:
        """Start a command that does not end by itself; gives the file of what it prints."""
        log = self.machine.home / f"{command.split()[1]}.log"
        log.touch()
        self.run(f"{command} > {shlex.quote(str(log))} 2>&1 &")
        return log


@pytest.fixture(scope="module")
def machines(network: Network) -> dict[str, Shell]:
    pytest.importorskip("moto.server", reason="needs moto[server]: install the extra 'dev'")
    pytest.importorskip("s3fs", reason="needs s3fs: install the extra 's3'")
    return {"laptop": Shell(network.add("laptop", 5)), "pc": Shell(network.add("pc", 7))}


def fires(shell: Shell) -> None:
    """The schedule comes, evaluates the run, and leaves that with it."""
    before = shell.run(f'python -c "{LIST}"')
    until(lambda: shell.run(f'python -c "{LIST}"') != before, seconds=150, every=0.5)


@pytest.mark.timeout(900)  # three minutes where nothing else runs
def test_the_tutorial_works_as_it_stands(machines: dict[str, Shell], half_right: Path) -> None:
    laptop, pc = machines["laptop"], machines["pc"]
    # the default warm-up would take six minutes of one core
    made = shutil.copytree(half_right, laptop.machine.home / "half-right")
    keep_whole(warm_up_uri(laptop.machine.home / ".rlvf", warm_up_spec(SftConfig())), made)
    (laptop.machine.home / "my_reward.py").write_text(REWARD)
    for name, command in COMMANDS:
        if command.startswith(BY_OTHERS):
            continue
        shell = machines[name]
        if command.startswith(STAYING):
            shutil.move(laptop.machine.home / "pc.bundle", pc.machine.home / "pc.bundle")  # by hand
            log = shell.stay(command)
            until(lambda log=log: "joined" in log.read_text(), seconds=90)
            print(log.read_text(), flush=True)
        else:
            shell.run(command)
        if command.endswith("&"):  # a person sees it come up
            log = shell.machine.home / re.findall(r"> (\S+)", command)[0]
            until(lambda log=log: log.exists() and "Running on" in log.read_text(), seconds=60)
        if "deployment schedule create" in command:
            fires(shell)
