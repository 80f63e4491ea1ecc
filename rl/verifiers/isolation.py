"""Functions that cannot be trusted to end, in processes that can be killed: the user's, and math-verify.

A process is a session of its own with limits on memory and processor time, a folder to work in, and an environment
without secrets; it judges one completion after another, and what its code keeps in globals stays. It is no sandbox: it
may read what its user may read. Messages are JSON: nothing that such a process sends is unpickled.
"""

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from math import isfinite, nan
from pathlib import Path
from queue import Empty, LifoQueue
from typing import Any
from weakref import WeakSet

from rl.records import Problem, Verdict

CHILD = Path(__file__).with_name("child.py")
LOAD_SECONDS = 60.0  # that the user's file may take with what it imports
LOOK_SECONDS = 0.25  # how often a call under way is looked after
MAX_ANSWER = 2**20  # bytes
KEPT = ("PATH", "PYTHONPATH", "VIRTUAL_ENV", "LANG", "LC_ALL", "LC_CTYPE", "TZ", "TMPDIR", "SYSTEMROOT")
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


class LoadError(ValueError):
    """The function cannot be loaded: one line that names the place."""


class _Lost(Exception):  # noqa: N818
    """A call that got no answer; the arguments are a reason and one line."""


class Pool:
    """A few processes that each hold the function. Any thread may call it."""

    def __init__(self, text: str, file: str, function: str, seconds: float, memory_mb: int, size: int = 0) -> None:
        self.size = size or min(4, os.cpu_count() or 1)
        self._load: dict[str, Any] = {
            "text": text,
            "file": file,
            "function": function,
            "seconds": seconds,
            "memory_mb": memory_mb,
        }
        self._idle: LifoQueue[_Process] = LifoQueue()
        self._threads = ThreadPoolExecutor(self.size, thread_name_prefix="verifier")
        self._folder = tempfile.TemporaryDirectory(prefix="rlvf-verifier-", ignore_cleanup_errors=True)
        self._closed = False
        _pools.add(self)

    def judge(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[Verdict]:
        """A verdict on each completion of the problem beside it, failures included."""
        try:
            self.warm()
        except LoadError as error:
            return [failed("verifier_error", str(error))] * len(problems)
        return list(self._threads.map(self._one, problems, completions))

    def warm(self) -> None:
        """Have a process ready. Raises LoadError."""
        self._idle.put(self._process())

    def close(self) -> None:
        """Kill the processes."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        with suppress(Empty):
            while True:
                self._idle.get_nowait().kill()
        self._folder.cleanup()

    def _process(self) -> "_Process":
        while True:
            try:
                process = self._idle.get_nowait()
            except Empty:
                return _Process(self._load, self._folder.name)
            if process.runs():
                return process
            process.kill()  # it ended between two calls

    def _one(self, problem: Problem, completion: str) -> Verdict:
        try:
            process = self._process()
        except LoadError as error:
            return failed("verifier_error", str(error))
        given = {
            "prompt": problem.prompt,
            "target": problem.target,
            "source": problem.source,
            "extra": dict(problem.extra),
        }
        try:
            answer = process.call({"problem": given, "completion": completion}, self._load["seconds"])
        except _Lost as lost:
            process.kill()
            reason, said = lost.args
            return failed(reason, f"{self._load['file']}: {self._load['function']} {said} ({problem.source})")
        except BaseException:
            process.kill()
            raise
        if answer.get("retire") or self._closed:
            process.kill()
        else:
            self._idle.put(process)
        return _verdict(answer)


class _Process:
    """One process, loaded."""

    def __init__(self, load: dict[str, Any], folder: str) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._popen = subprocess.Popen(
                [sys.executable, "-P", str(CHILD), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,  # what it prints
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env={**{name: os.environ[name] for name in KEPT if name in os.environ}, **ONE_THREAD},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )
        self._channel = ours
        try:
            answer = self.call(load, LOAD_SECONDS)
        except _Lost as lost:
            self.kill()
            raise LoadError(f"{load['file']} cannot be loaded: it {lost.args[1]}") from None
        except BaseException:
            self.kill()
            raise
        if answer.get("error"):
            self.kill()
            raise LoadError(str(answer["error"]))

    def runs(self) -> bool:
        try:
            # without collecting it: until then nobody else can get its id, which names its group
            return os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None
        except ChildProcessError:
            return False  # somebody else has collected it

    def call(self, message: dict[str, Any], seconds: float) -> dict[str, Any]:
        """The answer to a message. Raises _Lost."""
        deadline = time.monotonic() + seconds
        content = json.dumps(message).encode()
        try:
            self._channel.settimeout(seconds)
            self._channel.sendall(len(content).to_bytes(4, "big") + content)
            length = int.from_bytes(self._receive(4, deadline, seconds), "big")
            if length > MAX_ANSWER:
                raise _Lost("verifier_error", "sent an answer that is too long")
            answer = json.loads(self._receive(length, deadline, seconds))
        except TimeoutError:
            raise _Lost("timeout", f"took longer than {seconds:g} s") from None
        except OSError:
            raise _Lost(*self._end()) from None
        except ValueError:
            raise _Lost("verifier_error", "sent an answer that is no JSON") from None
        if not isinstance(answer, dict):
            raise _Lost("verifier_error", "sent an answer that is no object")
        return answer

    def kill(self) -> None:
        """End it and what it started in its group."""
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._popen.pid, signal.SIGKILL)
        self._popen.wait()
        self._channel.close()

    def _receive(self, count: int, deadline: float, seconds: float) -> bytes:
        content = bytearray()
        while len(content) < count:
            left = deadline - time.monotonic()
            if left <= 0:
                raise _Lost("timeout", f"took longer than {seconds:g} s")
            self._channel.settimeout(min(LOOK_SECONDS, left))
            try:
                piece = self._channel.recv(count - len(content))
            except TimeoutError:
                if not self.runs():  # a copy that it left behind may hold the socket open
                    raise _Lost(*self._end()) from None
                continue
            if not piece:
                raise _Lost(*self._end())
            content += piece
        return bytes(content)

    def _end(self) -> tuple[str, str]:
        """The reason and a line for a process that is gone."""
        deadline = time.monotonic() + 1
        while self.runs() and time.monotonic() < deadline:
            time.sleep(0.005)  # its socket closes a moment before it ends
        try:
            ended = os.waitid(os.P_PID, self._popen.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            ended = None
        if ended is None:
            return "verifier_error", "closed its connection"
        if ended.si_code == os.CLD_EXITED:
            return "verifier_error", f"ended its process with exit code {ended.si_status}"
        if ended.si_status == signal.SIGXCPU:
            return "timeout", "used more processor time than it may"
        return "verifier_error", f"ended its process by {signal.Signals(ended.si_status).name}"


def failed(reason: str, error: str) -> Verdict:
    """The verdict of a verifier that failed."""
    return Verdict(nan, reason, error=error)


def _verdict(answer: dict[str, Any]) -> Verdict:
    """What a process answered; it is believed no more than its code is."""
    if answer.get("error"):
        return failed("verifier_error", str(answer["error"])[:400])
    reward, reason, parts = answer.get("reward"), answer.get("reason"), answer.get("parts")
    numbers = [reward, *(parts.values() if isinstance(parts, dict) else [None])]
    if not isinstance(reason, str) or not all(isinstance(n, int | float) and isfinite(n) for n in numbers):
        return failed("verifier_error", "its process sent an answer that is no verdict")
    assert isinstance(parts, dict)
    return Verdict(float(answer["reward"]), reason, {str(name): float(part) for name, part in parts.items()})


_pools: WeakSet[Pool] = WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_pools):
        pool.close()
