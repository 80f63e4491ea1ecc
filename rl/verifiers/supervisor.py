"""The process above a verifier's: it ends everything that one has started, whatever became of it, and clears up.

Arguments: the descriptor of a socket, whose other end closes when the verifier is to end; of the verifier's own socket;
and JSON: the `command` to run in a folder of its own, {folder} and {processes} in it filled in, and the `owner` of that
folder. Says on the first socket how the command ended: {"exit": 3} or {"signal": 9}, or {"stopped": why}.

It is run as a file, with nothing but the standard library: it has to start fast and stay small.
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
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

PREFIX = "rlvf-verifier-"
LOOK_SECONDS = 1.0  # how often it looks for orphans and at the folder
END_SECONDS = 5.0
PROCESSES = 64  # beside those that the user has
FOLDER_BYTES = 256 * 2**20
FOLDER_FILES = 10_000
SET_CHILD_SUBREAPER = 36  # prctl
STATE, PARENT = 0, 1  # fields of /proc/<pid>/stat after the name

Tree = dict[int, list[int]]  # the children of a process


class TooMuchError(Exception):
    """The folder holds more than it may."""


def main() -> None:
    control, channel, asked = socket.socket(fileno=int(sys.argv[1])), int(sys.argv[2]), json.loads(sys.argv[3])
    if sys.platform == "linux":  # orphans below come to this process
        ctypes.CDLL(None).prctl(SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX)).resolve()
    held = os.open(folder, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)  # until this process ends: see `sweep`
    owner = asked["owner"]
    if owner is not None:
        os.chown(folder, owner, owner)
    (folder / "shm").mkdir(mode=0o777)
    (folder / "shm").chmod(0o777)
    filled = {"{folder}": str(folder), "{processes}": str(_processes_of(owner) + PROCESSES)}
    command = [_filled(word, filled) for word in asked["command"]]
    wakes, woken = os.pipe()
    for end in (wakes, woken):
        os.set_blocking(end, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(woken)
    child = subprocess.Popen(command, cwd=folder, pass_fds=(channel,), start_new_session=True)
    os.close(channel)
    try:
        how = _watch(control, wakes, child.pid, folder, command[0] == "bwrap")
        with suppress(OSError):
            control.sendall(json.dumps(how).encode())
    finally:
        _end_all()
        shutil.rmtree(folder, ignore_errors=True)


def sweep(owners: Collection[int]) -> None:
    """Remove the folders of supervisors that were killed themselves; those of other users, and what is no folder, stay.
    Whoever may write to the temporary folder can put there what has such a name."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):
            opened = os.open(left, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_NONBLOCK)
            try:
                found = os.fstat(opened)
                if found.st_uid in owners and found.st_mtime < time.time() - 60:  # else it may not have its lock yet
                    fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(left, ignore_errors=True)
            finally:
                os.close(opened)


def _watch(control: socket.socket, wakes: int, child: int, folder: Path, bubblewrapped: bool) -> dict[str, object]:
    """How it came to an end."""
    waiting = select.poll()
    waiting.register(control, select.POLLIN)
    waiting.register(wakes, select.POLLIN)
    look = time.monotonic() + LOOK_SECONDS
    while True:
        ready = dict(waiting.poll(max(0.0, look - time.monotonic()) * 1000))
        if control.fileno() in ready:
            return {"stopped": "it was told to end"}
        with suppress(BlockingIOError):
            os.read(wakes, 4096)
        ended = _collect().get(child)
        if ended is not None:
            by_signal = os.WIFSIGNALED(ended)
            return {"signal": os.WTERMSIG(ended)} if by_signal else {"exit": os.WEXITSTATUS(ended)}
        if time.monotonic() >= look:  # by the clock: orphans that end without a pause leave no poll empty
            _end_orphans(child, bubblewrapped)
            try:
                _measure(folder)
            except TooMuchError as much:
                return {"stopped": str(much)}
            look = time.monotonic() + LOOK_SECONDS


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
    """End what has lost its parent: in a verifier, nobody waits for it. It comes to this process, or to the first of
    bubblewrap's namespace, in which the verifier is the second."""
    lost = set(_children(os.getpid())) - {child}
    if bubblewrapped:
        lost |= {pid for first in _children(child) for pid in _children(first) if not _is_second(pid)}
    _signal(lost, signal.SIGKILL)


def _children(pid: int) -> list[int]:
    with suppress(OSError):
        if sys.platform == "linux":
            listed = Path(f"/proc/{pid}/task/{pid}/children")
            # without that file, which a kernel may lack, all processes are looked through
            return [int(one) for one in listed.read_text().split()] if listed.exists() else _running().get(pid, [])
    return []  # elsewhere orphans come to nobody of ours


def _is_second(pid: int) -> bool:
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/status").read_text(errors="replace").splitlines()
        return any(line.startswith("NSpid:") and line.split()[-1] == "2" for line in lines)
    return True  # it has gone


def _end_all() -> None:
    """End every descendant. All are stopped first: what is killed one by one may fork faster."""
    deadline = time.monotonic() + END_SECONDS
    stopped: set[int] = set()
    while time.monotonic() < deadline:
        found = set(_descendants())
        if found <= stopped:
            break
        _signal(found - stopped, signal.SIGSTOP)
        stopped |= found
    while time.monotonic() < deadline:
        found = set(_descendants())
        if not found:
            break
        _signal(found, signal.SIGKILL)
        time.sleep(0.002)
        _collect()


def _signal(pids: set[int], number: signal.Signals) -> None:
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, number)


def _descendants() -> list[int]:
    """All of them that run."""
    tree, found, below = _running(), [], [os.getpid()]
    while below:
        children = tree.get(below.pop(), [])
        found += children
        below += children
    return found


def _running() -> Tree:
    """Every process that is no zombie, under its parent."""
    tree: Tree = {}
    if sys.platform != "linux":
        with subprocess.Popen(["ps", "-axo", "pid=,ppid=,stat="], stdout=subprocess.PIPE, text=True) as ps:
            rows = [line.split(maxsplit=2) for line in ps.communicate()[0].splitlines()]
        for pid, parent, state in rows:
            if not state.startswith("Z") and int(pid) != ps.pid:
                tree.setdefault(int(parent), []).append(int(pid))
        return tree
    for name in _numbers():
        with suppress(OSError):
            fields = Path("/proc", name, "stat").read_text(errors="replace").rpartition(")")[2].split()
            if fields[STATE] not in "ZX":
                tree.setdefault(int(fields[PARENT]), []).append(int(name))
    return tree


def _processes_of(user: int | None) -> int:
    """How many threads a user runs: that is what the limit on processes counts."""
    wanted, count = str(os.getuid() if user is None else user), 0
    if sys.platform != "linux":
        return 0
    for name in _numbers():
        with suppress(OSError):
            lines = Path("/proc", name, "status").read_text(errors="replace").splitlines()
            of = dict(line.split(":", 1) for line in lines if line.startswith(("Uid:", "Threads:")))
            if of["Uid"].split()[0] == wanted:
                count += int(of["Threads"])
    return count


def _numbers() -> list[str]:
    return [name for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208  a Path each would cost more


def _measure(folder: Path) -> None:
    """Raise TooMuchError where there is more in it than may be."""
    size = files = 0
    for path, _, names in os.walk(folder):
        files += len(names) + 1
        for name in names:
            with suppress(OSError):
                size += os.lstat(os.path.join(path, name)).st_blocks * 512  # noqa: PTH118  a Path each would cost more
        if size > FOLDER_BYTES or files > FOLDER_FILES:
            raise TooMuchError(f"wrote more than {FOLDER_BYTES // 2**20} MB or {FOLDER_FILES} files")


def _filled(word: str, values: dict[str, str]) -> str:
    for name, value in values.items():
        word = word.replace(name, value)
    return word


if __name__ == "__main__":
    main()
