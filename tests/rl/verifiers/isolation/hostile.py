"""Run by test_hostile.py in a process of its own, as the machine's worker does: what code that a model wrote gets at.

Arguments: a sandbox, and JSON: `port` where somebody listens, `secret` a file. Prints JSON.
"""

import errno
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil

from rl.records import Problem
from rl.verifiers.isolation import sandbox, seccomp, syscalls
from rl.verifiers.isolation.pool import Pool
from rl.verifiers.isolation.process import Cell
from rl.verifiers.isolation.watched import PROCESSES
from tests.rl.verifiers.isolation.hostile_reward import REWARD

MARK = f"4711.{os.getpid()}"  # seconds that a process sleeps, by which it is known among those of other runs
BOMB, HEADLESS = f"bomb-{os.getpid()}", f"head-{os.getpid()}"  # names of processes
HOLDS = ("memory_files", "processes", "deleted", "mapped", "shared", "carried")


def named(*words: str) -> int:
    """How many processes run whose name or command line holds these."""
    found = 0
    for one in psutil.process_iter():
        try:
            said = [one.name(), *one.cmdline()]
            found += set(words) <= set(said) and one.status() != psutil.STATUS_ZOMBIE
        except psutil.Error:
            pass  # it has gone
    return found


def refused() -> list[tuple[str, int, int, int]]:
    """The calls that no sandbox allows: name, number, first argument, how it fails."""
    at = seccomp.MACHINES.index(os.uname().machine)
    plain = [(name, call[at], -1, errno.EPERM) for name, call in syscalls.REFUSED.items()]
    plain += [(name, call[at], -1, errno.ENOSYS) for name, call in syscalls.ABSENT.items()]
    user = 0x10000000  # CLONE_NEWUSER
    return [
        *plain,
        ("unshare", syscalls.UNSHARE[at], user, errno.EPERM),
        ("clone", syscalls.CLONE[at], user | signal.SIGCHLD | 1 << 15, errno.EPERM),  # and CLONE_PARENT
    ]


def threads(name: str) -> int:
    """How many threads have this name."""
    found = 0
    for path in Path("/proc").glob("[0-9]*/task/*/comm"):
        with suppress(OSError):
            found += path.read_text().strip() == name
    return found


def sleeping() -> int:
    return named("sleep", MARK)


def folders() -> list[Path]:
    return list(Path(tempfile.gettempdir()).glob("rlvf-verifier-*"))


def kill_supervisor(opened: Callable[[], Pool], problem: Problem, later: float) -> list[float]:
    """Kill the one above a verifier that has started a process in a session of its own. How many ran before; how many
    do, and how many folders there are, when the same pool has judged again, or, ``later`` seconds on, another one."""
    before = set(psutil.Process().children())
    pool = opened()
    pool.judge([problem], ["session"])
    deadline = time.monotonic() + 20
    while not (started := sleeping()) and time.monotonic() < deadline:
        time.sleep(0.01)  # whoever starts one goes on before its command line can be read
    (supervisor,) = set(psutil.Process().children()) - before
    supervisor.kill()
    os.waitid(os.P_PID, supervisor.pid, os.WEXITED | os.WNOWAIT)
    if later:
        for folder in folders():
            os.utime(folder, (time.time() - later, time.time() - later))
        lost, pool = pool, opened()
    assert pool.judge([problem], ["right"])[0].reward == 1
    found = [started, sleeping(), len(folders())]
    pool.close()
    if later:
        lost.close()
    return found


def main() -> None:
    wanted, given = sys.argv[1], json.loads(sys.argv[2])
    if lacks := sandbox.missing(wanted):
        print(json.dumps({"missing": lacks}))
        return
    extra = {**given, "parent": os.getpid(), "mark": MARK, "bomb": BOMB, "headless": HEADLESS, "root": os.getuid() == 0}
    if seccomp.works():
        at = seccomp.MACHINES.index(os.uname().machine)
        extra |= {"refused": refused(), "open_by_handle_at": syscalls.REFUSED["open_by_handle_at"][at]}
    problem = Problem("", "", "here", extra)
    cell = Cell(wanted, hidden=[str(Path(given["secret"]).parent)])
    pool = Pool(REWARD, "r.py", "reward", seconds=20, memory_mb=300, size=1, cell=cell)
    found: dict[str, object] = {"uid": os.getuid()}

    def ask(name: str) -> None:
        (verdict,) = pool.judge([problem], [name])
        found[name] = [None if verdict.error else verdict.reward, verdict.error or verdict.reason]

    for name in ("raise_limits", "memory", "write", "outside", "secret", "parent", "everybody", "memory_of_parent"):
        ask(name)
    for name in ("owned", "rights", "usual", *(("handle", "calls") if seccomp.works() else ())):
        ask(name)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    for name in ("unix", "unix_datagram_of_a_pair", "udp", "pair", "var_tmp"):
        ask(name)
    for name in ("connect", "kill_parent", "new_privileges", "orphan"):
        ask(name)
    deadline = time.monotonic() + 20
    while sleeping() and time.monotonic() < deadline:
        time.sleep(0.1)
    found["orphans"] = sleeping()
    ask("session")
    bombs = []
    for _ in range(4):
        ask("bomb")
        bombs.append(found["bomb"])
    found["bombs_said"] = bombs
    deadline = time.monotonic() + 20
    while sleeping() > PROCESSES and time.monotonic() < deadline:
        time.sleep(
            0.1
        )  # the kernel counts the user's processes, so that those that end beside it leave room for a look
    found["most"] = sleeping()
    pool.close()
    found["left"] = sleeping()
    pool = Pool(REWARD, "r.py", "reward", seconds=20, memory_mb=300, size=1, cell=cell)
    for name in ("fill", "fill_amid_orphans", "orphan_amid_orphans"):
        ask(name)
    pool.close()
    pool = Pool(REWARD, "r.py", "reward", seconds=20, memory_mb=300, size=4, cell=cell)
    names = [f"hold_{name}" for name in (*HOLDS, *(() if wanted == sandbox.NONE else ("shm",)))] + [
        "within",
        "hide",
        "headless",
    ]
    for name, verdict in zip(names, pool.judge([problem] * len(names), names), strict=True):
        found[name] = [None if verdict.error else verdict.reward, verdict.error or verdict.reason]
    pool.close()
    found["headless_left"] = threads(HEADLESS)
    pool = Pool(REWARD, "r.py", "reward", seconds=1, memory_mb=300, size=1, cell=cell)
    ask("forever")
    ask("right")
    found["bombs"] = named(BOMB)
    pool.close()
    found["killed"] = kill_supervisor(lambda: Pool(REWARD, "r.py", "reward", 20, 300, size=1, cell=cell), problem, 0)
    found["killed_with_its_worker"] = kill_supervisor(
        lambda: Pool(REWARD, "r.py", "reward", 20, 300, size=1, cell=cell), problem, 61
    )
    found["folders"] = len(folders())
    print(json.dumps(found))


if __name__ == "__main__":
    main()
