"""The process above a verifier's: it ends everything that the verifier has started, and removes its folder.

Arguments: the descriptor of a socket, whose other end closes when the verifier is to end; of the verifier's own socket.
On its input JSON: the `command` to run in a folder of its own, {folder} and {processes} in it filled in, the `owner` of
that folder, `memory_mb` that all below may hold together, and how many `forks` it may have beside.
Says on the first socket how the command ended: {"exit": 3} or {"signal": 9}, or {"stopped": why}.

It imports the standard library and what it measures with, nothing else: it has to start fast and stay small.
"""

import ctypes
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from rl.verifiers.isolation import family
from rl.verifiers.isolation.attributes import Attributes
from rl.verifiers.isolation.leftovers import FOLDER, MARK, PREFIX
from rl.verifiers.isolation.watched import OTHERS, PROCESSES, Bounds, TooMuchError, Watched

POLL_SECONDS = 1.0  # how often it looks for orphans and at what is held
SOON_SECONDS = 0.1  # where that is more than half of what may be
END_SECONDS = 30.0  # that hundreds of processes may take to be ended where others have the processor
SET_CHILD_SUBREAPER = 36  # prctl


def main() -> None:
    control, channel = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2])
    asked = json.loads(sys.stdin.buffer.read())
    if sys.platform == "linux":  # orphans below come to this process
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    # what the verifier may write, and give any rights, lies where no other user of the machine gets at it
    around = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-")).resolve()
    held = os.open(around, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)  # until this process ends: see `rl.verifiers.isolation.leftovers`
    folder = around / FOLDER
    folder.mkdir(mode=0o700)
    owner = asked["owner"]
    if owner is not None:
        os.chown(around, -1, owner)  # its group
        around.chmod(0o710)
        os.chown(folder, owner, os.getegid())
        folder.chmod(0o710)  # who leaves root in it passes through before, without a right: Python may lie below
    processes = family.processes_of(owner) + PROCESSES + asked["forks"] + OTHERS
    filled = {"{folder}": str(folder), "{processes}": str(processes)}
    asking, asks = socket.socketpair()  # by which a listener comes: `rl.verifiers.isolation.attributes`
    filled["{asks}"] = str(asks.fileno())
    command = [_filled(word, filled) for word in asked["command"]]
    wakes, woken = os.pipe()
    for end in (wakes, woken):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    passed = (channel, asks.fileno())
    marked = {**os.environ, MARK: str(folder)}
    child = subprocess.Popen(
        command, cwd=folder, env=marked, stdin=subprocess.DEVNULL, pass_fds=passed, start_new_session=True
    )
    os.close(channel)
    asks.close()
    try:
        bounds = Bounds(asked["memory_mb"], asked["forks"])
        watched = Watched(child.pid, folder, command[0] == "bwrap", owner, bounds)
        how = _watch(control, wakes, asking, watched, Attributes(folder, owner) if sys.platform == "linux" else None)
        with suppress(OSError):
            control.sendall(json.dumps(how).encode())
    finally:
        _end_all()
        shutil.rmtree(around, ignore_errors=True)


def _watch(
    control: socket.socket, wakes: int, asking: socket.socket, watched: Watched, attributes: Attributes | None
) -> dict[str, object]:
    """How the command ended."""
    waiting = select.poll()
    waiting.register(control, select.POLLIN)
    waiting.register(wakes, select.POLLIN)
    waiting.register(asking, select.POLLIN)
    listener = -1
    look = time.monotonic() + POLL_SECONDS
    while True:
        ready = dict(waiting.poll(max(0.0, look - time.monotonic()) * 1000))
        if control.fileno() in ready:
            return {"stopped": "it was told to end"}
        if asking.fileno() in ready:
            waiting.unregister(asking)
            for listener in socket.recv_fds(asking, 1, 1)[1]:
                waiting.register(listener, select.POLLIN)
        if attributes is not None and ready.get(listener, 0) & select.POLLIN:
            attributes.answer(listener)
        elif listener in ready:  # nobody is left to ask
            waiting.unregister(listener)
        with suppress(BlockingIOError):
            os.read(wakes, 4096)
        ended = _collect().get(watched.child)
        if ended is not None:
            by_signal = os.WIFSIGNALED(ended)
            return {"signal": os.WTERMSIG(ended)} if by_signal else {"exit": os.WEXITSTATUS(ended)}
        if time.monotonic() >= look:  # by the clock: orphans that end without a pause leave no poll empty
            _end_orphans(watched.child, watched.bubblewrapped)
            try:
                share = watched.measure()
            except TooMuchError as much:
                return {"stopped": str(much)}
            look = time.monotonic() + (POLL_SECONDS if share < 0.5 else SOON_SECONDS)


def _collect() -> dict[int, int]:
    """The status of each child that has ended."""
    found = {}
    with suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                break
            found[pid] = status
    return found


def _end_orphans(child: int, bubblewrapped: bool) -> None:
    """End the processes that have lost their parent. They become children of this process, or of the first one in
    bubblewrap's namespace, in which the verifier is the second."""
    lost = set(family.children(os.getpid())) - {child}
    if bubblewrapped:
        lost |= {pid for first in family.children(child) for pid in family.children(first) if not family.is_second(pid)}
    _signal(lost, signal.SIGKILL)


def _end_all() -> None:
    """End every descendant. All are stopped first: what is killed one by one may fork faster."""
    deadline = time.monotonic() + END_SECONDS
    stopped: set[int] = set()
    while time.monotonic() < deadline:
        found = set(family.descendants())
        if found <= stopped:
            break
        _signal(found - stopped, signal.SIGSTOP)
        stopped |= found
    while time.monotonic() < deadline:
        found = set(family.descendants())
        if not found:
            break
        _signal(found, signal.SIGKILL)
        time.sleep(0.002)
        _collect()


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)


def _filled(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word
