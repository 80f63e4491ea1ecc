"""docs/tutorial.md, command by command, on two machines that share nothing but a bucket."""

import re
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TUTORIAL = (ROOT / "docs" / "tutorial.md").read_text()
COMMANDS = re.findall(r"^(laptop|pc)\$ (.+)$", TUTORIAL, flags=re.MULTILINE)
(REWARD,) = re.findall(r"^```python\n(.+?)^```$", TUTORIAL, flags=re.MULTILINE | re.DOTALL)
BY_OTHERS = ("git clone", "make setup", ". .venv")  # what brought us here has done these
STAYING = ("rlvf worker",)
# made once where the tests are, and put where the commands look: a warm-up takes two minutes
SMALL = {"RLVF_SMALL": "1"}


class Shell:
    """A shell on a machine that keeps its variables from command to command, as a person's does."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self._process = machine.start("bash", stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.staying: list[subprocess.Popen[str]] = []

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

    def stay(self, command: str) -> None:
        """Start a command that does not end by itself."""
        self.run(f"{command} > {shlex.quote(command.split()[1])}.log 2>&1 &")

    def variable(self, name: str) -> str:
        return self.run(f'echo "${name}"').strip()


@pytest.fixture(scope="module")
def machines(network: Callable[[str, int], Any], until: Callable[..., Any]) -> Iterator[dict[str, Shell]]:
    pytest.importorskip("moto.server", reason="needs moto[server]: install the extra 'dev'")
    pytest.importorskip("s3fs", reason="needs s3fs: install the extra 's3'")
    laptop, pc, store = network("laptop", 5), network("pc", 7), network("store", 9)
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = store.start("moto_server", "-H", store.address, "-p", "9000", **quiet)
    access = {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "x", "AWS_DEFAULT_REGION": "us-east-1"}
    make = f"import boto3; boto3.client('s3', endpoint_url='http://{store.address}:9000').create_bucket(Bucket='rlvf')"
    until(lambda: store.start("python", "-c", make, env=access, **quiet).wait() == 0)
    yield {"laptop": Shell(laptop), "pc": Shell(pc)}
    server.kill()
    server.wait()


def test_the_tutorial_works_as_it_stands(machines: dict[str, Shell], until: Callable[..., Any]) -> None:
    laptop, pc = machines["laptop"], machines["pc"]
    (laptop.machine.home / "my_reward.py").write_text(REWARD)
    for name, command in COMMANDS:
        if command.startswith(BY_OTHERS):
            continue
        shell = machines[name]
        if command.startswith(STAYING):
            shutil.move(laptop.machine.home / "pc.bundle", pc.machine.home / "pc.bundle")  # by hand
            shell.stay(command)
            until(lambda: "joined" in (pc.machine.home / "worker.log").read_text(), seconds=60)
        else:
            shell.run(command)
