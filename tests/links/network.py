"""Machines of one's own on one computer: network namespaces, each joined to one bridge by a link of its own.

    with network(folder) as net:
        store, laptop = net.add("store", 9), net.add("laptop", 5, WIFI)
        laptop.run("curl", f"http://{store.address}:9000")
        net.cut("laptop")

Linux, root: `available` says what is missing.
"""

import itertools
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.links.link import CABLE, Link, LinkError, joined, limit, run, tap

PREFIX = "192.168.1"  # of the addresses
_numbers = itertools.count()  # of the networks of this process


@dataclass(frozen=True)
class Machine:
    """A network namespace with a home folder; a process in it sees its own loopback and the network, nothing else."""

    name: str
    address: str
    home: Path
    namespace: str
    environment: dict[str, str] = field(default_factory=dict)

    def start(self, *words: str, env: Mapping[str, str] | None = None, **options: Any) -> subprocess.Popen[str]:
        """A process on this machine, in a process group of its own. `options` are those of `subprocess.Popen`."""
        ours = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "HOME": str(self.home)}
        package = str(Path(__file__).parents[2])
        merged = {**ours, "OMP_NUM_THREADS": "1", "PYTHONPATH": package, **self.environment, **(env or {})}
        defaults = {"cwd": self.home, "text": True, "stdin": subprocess.DEVNULL, "start_new_session": True}
        command = ["ip", "netns", "exec", self.namespace, *words]
        started: subprocess.Popen[str] = subprocess.Popen(command, env=merged, **{**defaults, **options})
        return started

    def run(self, *words: str, seconds: float = 60, code: int = 0, env: Mapping[str, str] | None = None) -> str:
        """What a command prints. Raises LinkError if it does not end with this code, or not in time."""
        process = self.start(*words, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        try:
            out, _ = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, _ = process.communicate()
            raise LinkError(f"{self.name}: {' '.join(words)} took longer than {seconds} s:\n{out}") from None
        if process.returncode != code:
            raise LinkError(f"{self.name}: {' '.join(words)} ended with {process.returncode}:\n{out}")
        return out


class Network:
    """A star: machines by name, each joined to one bridge. Nothing leads out of it. Made by `network`."""

    def __init__(self, name: str, folder: Path, seed: int, stack: ExitStack) -> None:
        self.machines: dict[str, Machine] = {}
        self._name = name
        self._hub = f"{name}-hub"
        self._folder = folder
        self._seed = seed
        self._stack = stack

    def add(self, name: str, number: int, link: Link = CABLE) -> Machine:
        """A new machine with the address 192.168.1.<number>; its home is a new folder."""
        if name in self.machines or not 1 <= number <= 254 or self._port(number) in map(self._port_of, self.machines):
            raise ValueError(f"machine {name!r}, number {number}: a name and a number from 1 to 254 that are free")
        home = self._folder / name
        home.mkdir(parents=True)
        namespace = f"{self._name}-machine{number}"
        machine = Machine(name, f"{PREFIX}.{number}", home, namespace)
        run("ip", "netns", "add", namespace)
        self._stack.callback(_remove, namespace)
        port = self._port(number)
        self._stack.enter_context(joined(link, namespace, self._hub, port, f"{self._seed} {port}"))
        run("ip", "-n", self._hub, "link", "set", port, "master", "bridge", "up")
        run("ip", "-n", namespace, "link", "set", "lo", "up")
        run("ip", "-n", namespace, "link", "set", "eth0", "address", _mac(machine), "up")
        run("ip", "-n", namespace, "address", "add", f"{machine.address}/24", "dev", "eth0")
        for other in self.machines.values():
            _know(machine, other)
            _know(other, machine)
        self.machines[name] = machine
        return machine

    def cut(self, name: str) -> None:
        """From now on every frame to and from this machine is lost; it sees no cable being pulled."""
        run("ip", "-n", self._hub, "link", "set", self._port_of(name), "nomaster")

    def mend(self, name: str) -> None:
        """Undo `cut`."""
        run("ip", "-n", self._hub, "link", "set", self._port_of(name), "master", "bridge")

    def _port_of(self, name: str) -> str:
        return self._port(int(self.machines[name].address.rpartition(".")[2]))

    @staticmethod
    def _port(number: int) -> str:
        return f"port{number}"


@contextmanager
def network(folder: Path, seed: int = 0) -> Iterator[Network]:
    """A network without machines; those that are added have their homes in `folder`. Which frames a lossy link loses
    follows from `seed`. At the end everything that runs on it is killed.

    Raises LinkError where `available` names a reason.
    """
    if reason := available():
        raise LinkError(reason)
    _sweep()
    name = f"rlvf-{os.getpid()}-{next(_numbers)}"
    hub = f"{name}-hub"
    with ExitStack() as stack:
        run("ip", "netns", "add", hub)
        stack.callback(_remove, hub)
        run("ip", "-n", hub, "link", "add", "bridge", "type", "bridge")
        run("ip", "-n", hub, "link", "set", "bridge", "up")
        yield Network(name, folder, seed, stack)


def available() -> str | None:
    """Why networks cannot be made here; None if they can."""
    if sys.platform != "linux":
        return "needs Linux"
    for program in ("ip", "tc"):
        if shutil.which(program) is None:
            return f"needs the command {program} (iproute2)"
    probe = f"rlvf-{os.getpid()}-probe"
    try:
        run("ip", "netns", "add", probe)
        try:
            run("ip", "-n", probe, "link", "add", "bridge", "type", "bridge")
            limit(probe, "lo", 1)
            with tap():
                pass
        finally:
            _remove(probe)
    except (LinkError, OSError) as error:
        return f"needs the right to make network namespaces, and devices in them: {error}"
    return None


def _mac(machine: Machine) -> str:
    return f"02:00:00:00:00:{int(machine.address.rpartition('.')[2]):02x}"


def _know(one: Machine, other: Machine) -> None:
    """No question that a cut link could leave open: a machine that is cut off is silent, not "no route to host"."""
    to = ("to", other.address, "lladdr", _mac(other), "dev", "eth0", "nud", "permanent")
    run("ip", "-n", one.namespace, "neighbour", "add", *to)


def _remove(namespace: str) -> None:
    """Kill what runs in a namespace, and delete it."""
    deadline = time.monotonic() + 10
    while (left := run("ip", "netns", "pids", namespace).split()) and time.monotonic() < deadline:
        for pid in left:
            with suppress(ProcessLookupError):
                os.kill(int(pid), signal.SIGKILL)
        time.sleep(0.05)
    run("ip", "netns", "delete", namespace)


def _sweep() -> None:
    """Remove what processes left that were killed."""
    for line in run("ip", "netns", "list").splitlines():
        name = line.split()[0]
        if (match := re.fullmatch(r"rlvf-(\d+)-.+", name)) and not Path(f"/proc/{match[1]}").exists():
            _remove(name)
