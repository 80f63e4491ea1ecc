"""Machines of one's own: network namespaces with an address each, on one bridge, with nothing else in common."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NETWORK = "192.168.1.{}"


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=30)


@dataclass(frozen=True)
class Machine:
    """A network namespace with a home folder; a process in it sees its own loopback and the bridge, nothing else."""

    name: str
    address: str
    home: Path
    namespace: str
    environment: dict[str, str] = field(default_factory=dict)

    def start(self, *words: str, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
        """A process on this machine, in a process group of its own."""
        inherited = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(self.home)}
        return subprocess.Popen(
            ["ip", "netns", "exec", self.namespace, *words],
            **{"cwd": self.home, "text": True, "stdin": subprocess.DEVNULL, "start_new_session": True, **options},
            env={**inherited, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), **self.environment, **(env or {})},
        )

    def run(self, *words: str, seconds: float = 60, code: int = 0, env: Mapping[str, str] | None = None) -> str:
        """What a command prints; it must end with this code."""
        process = self.start(*words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            out, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, _ = process.communicate()
            raise AssertionError(f"{self.name}: {' '.join(words)} took longer than {seconds} s:\n{out}") from None
        assert process.returncode == code, f"{self.name}: {' '.join(words)} ended with {process.returncode}:\n{out}"
        return out

    def processes(self) -> list[int]:
        """The ids of the processes that run on this machine."""
        listed = subprocess.run(["ip", "netns", "pids", self.namespace], capture_output=True, text=True, timeout=30)
        return [int(word) for word in listed.stdout.split()]


@contextmanager
def machine(name: str, number: int, bridge: str, home: Path) -> Iterator[Machine]:
    """A machine on the bridge, which ends with everything that runs on it."""
    namespace = f"rlvf{os.getpid()}{name}"
    cable = f"v{os.getpid() % 10**7}{number}"
    home.mkdir()
    ip("netns", "add", namespace)
    made = Machine(name, NETWORK.format(number), home, namespace)
    try:
        ip("link", "add", cable, "type", "veth", "peer", "name", "eth0", "netns", namespace)
        ip("link", "set", cable, "netns", bridge)
        ip("-n", bridge, "link", "set", cable, "master", "bridge", "up")
        ip("-n", namespace, "link", "set", "lo", "up")
        ip("-n", namespace, "address", "add", f"{made.address}/24", "dev", "eth0")
        ip("-n", namespace, "link", "set", "eth0", "up")
        yield made
    finally:
        deadline = time.monotonic() + 10
        while (left := made.processes()) and time.monotonic() < deadline:
            for pid in left:
                os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)
        ip("netns", "delete", namespace)


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str, int], Machine]]:
    """Gives machines by name and number on one network; it has no way out."""
    if shutil.which("ip") is None:
        pytest.skip("needs the command ip (iproute2)")
    bridge = f"rlvf{os.getpid()}bridge"
    try:
        ip("netns", "add", bridge)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"needs the right to make network namespaces: {error.stderr.decode().strip()}")
    folder = tmp_path_factory.mktemp("machines")
    with ExitStack() as stack:
        stack.callback(ip, "netns", "delete", bridge)
        ip("-n", bridge, "link", "add", "bridge", "type", "bridge")
        ip("-n", bridge, "link", "set", "bridge", "up")
        yield lambda name, number: stack.enter_context(machine(name, number, bridge, folder / name))


@pytest.fixture(scope="module")
def until() -> Callable[..., Any]:
    def poll(true: Callable[[], Any], seconds: float = 60.0) -> Any:
        deadline = time.monotonic() + seconds
        while not (found := true()):
            assert time.monotonic() < deadline, "waited too long"
            time.sleep(0.5)
        return found

    return poll
