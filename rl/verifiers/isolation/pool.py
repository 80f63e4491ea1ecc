"""Functions that cannot be trusted to end, in processes that can be killed: the user's, and math-verify.

Each process has limits that it cannot raise, a folder of its own to work in, an environment without secrets, and
the best sandbox that the machine has; it judges one completion after another, and what its code keeps in globals stays.
A supervisor ends it with everything that it started. Messages are JSON: nothing that such a process sends is unpickled.
"""

import atexit
import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Empty, LifoQueue
from typing import Any
from weakref import WeakSet

from rl.records import Problem, Verdict
from rl.verifiers.isolation import leftovers, sandbox
from rl.verifiers.isolation.channel import LostError
from rl.verifiers.isolation.confinement import close_environment
from rl.verifiers.isolation.process import Cell, LoadError, Process
from rl.verifiers.timeouts import OfCall, TimeOuts
from rl.verifiers.verdicts import NOT_JUDGED, NOT_TRIED, as_json, checked, failed

IN_A_ROW = 16  # time-outs before the rest is not tried: of the problem, and of the call if they are of several problems
_NETWORK = re.compile(r"Errno 101\b|Errno -[235]\b|Name or service|name resolution|Connect(?:ion)?Error|APIConnection")
_MISSING = re.compile(r"Errno (?:2|13)\].*?: '(?P<path>/[^']+)'")
_READ_ONLY = re.compile(r"Errno 30\b|Read-only file system")


class Pool:
    """At most `size` processes, each with the function loaded. Any thread may call a pool.

    Its own threads alone take processes, each one at a time: a caller that took one would be one more.
    """

    def __init__(
        self,
        text: str,
        file: str,
        function: str,
        seconds: float,
        memory_mb: int,
        size: int = 0,
        cell: Cell | None = None,
    ) -> None:
        self.size = size or min(4, os.cpu_count() or 1)
        self.cell = cell or Cell(sandbox.chosen(sandbox.AUTO))
        self._load: dict[str, Any] = {
            "text": text,
            "file": file,
            "function": function,
            "seconds": seconds,
            "memory_mb": memory_mb,
        }
        self._idle: LifoQueue[Process] = LifoQueue()
        self._threads = ThreadPoolExecutor(self.size, thread_name_prefix="verifier")
        self._closed = False
        self._timeouts = TimeOuts(IN_A_ROW)
        if self.cell.sandbox == sandbox.NONE:
            close_environment()
        leftovers.sweep(os.geteuid())
        _pools.add(self)

    def judge(self, problems: Sequence[Problem], completions: Sequence[str]) -> list[Verdict]:
        """A verdict on each completion of the problem beside it, failures included.

        After IN_A_ROW time-outs in a row on one problem its further completions are not tried. After as many on several
        problems nothing more is; a later call tries one completion before the others.
        """
        try:
            self.warm()
        except LoadError as error:
            return [failed("verifier_error", str(error))] * len(problems)
        first: list[Verdict] = []
        one = partial(self._one, self._timeouts.of_call())
        if self._timeouts.hangs and problems:
            first = [self._threads.submit(one, problems[0], completions[0], probe=True).result()]
        return first + list(self._threads.map(one, problems[len(first) :], completions[len(first) :]))

    @property
    def about(self) -> str:
        """The sandbox of its processes, in words."""
        network = "" if self.cell.sandbox == sandbox.NONE else f", {'with' if self.cell.network else 'no'} network"
        return f"sandbox {self.cell.sandbox}{network}{sandbox.leaves_open(self.cell.sandbox)}"

    def warm(self) -> None:
        """Have a process ready. Raises LoadError."""
        self._threads.submit(lambda: self._put_back(self._process())).result()

    def close(self) -> None:
        """Kill the processes."""
        self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        with suppress(Empty):
            while True:
                self._idle.get_nowait().kill()

    def _process(self) -> Process:
        while True:
            try:
                process = self._idle.get_nowait()
            except Empty:
                return Process(self._load, self.cell)
            if process.runs() and process.is_silent():
                return process
            process.kill()  # it ended between two calls, or something wrote into its socket

    def _put_back(self, process: Process) -> None:
        if self._closed:
            process.kill()
        else:
            self._idle.put(process)

    def _one(self, timeouts: OfCall, problem: Problem, completion: str, probe: bool = False) -> Verdict:
        function, seconds = f"{self._load['file']}: {self._load['function']}", self._load["seconds"]
        hangs = f"{function} took longer than {seconds:g} s {self._timeouts.limit} times in a row"
        if not probe and self._timeouts.hangs:
            return failed(NOT_TRIED, f"{hangs}, on several problems; the rest was not tried")
        if timeouts.is_hopeless(problem):
            return failed(
                NOT_JUDGED, f"{hangs} on one problem; its other completions were not tried ({problem.source})"
            )
        try:
            process = self._process()
        except LoadError as error:
            return failed("verifier_error", str(error))
        try:
            answer = process.call({"problem": as_json(problem), "completion": completion}, seconds)
        except LostError as lost:
            process.kill()
            reason, said = lost.args
            timeouts.count(problem, reason == "timeout")
            return failed(reason, f"{function} {said} ({problem.source}){self.cell.printed}")
        except BaseException:
            process.kill()
            raise
        if answer.get("retire"):
            process.kill()
        else:
            self._put_back(process)
        timeouts.count(problem, timeout=False)
        if answer.get("error"):
            said = str(answer["error"])[:400]
            return failed("verifier_error", said + self._denied(said) + self.cell.printed)
        try:
            return checked(answer.get("reward"), answer.get("reason"), answer.get("parts"))
        except ValueError:
            return failed("verifier_error", f"its process sent an answer that is no verdict{self.cell.printed}")

    def _denied(self, error: str) -> str:
        """The remedy for an error that its sandbox is likely to cause; empty for others."""
        if self.cell.sandbox == sandbox.NONE:
            return ""
        if not self.cell.network and _NETWORK.search(error):
            return "; its sandbox has no network: --verifier.network true"
        if (path := self._closed_file(error)) is not None:
            if any(path.is_relative_to(seen) for seen in self.cell.reads):
                return "; its sandbox shows of this folder what lay there when it began"
            return "; its sandbox shows nothing of it: --verifier.reads"
        return "; its sandbox lets it write to $TMPDIR alone" if _READ_ONLY.search(error) else ""

    def _closed_file(self, error: str) -> Path | None:
        """The file that it names, if that is there, in a closed place or in a folder that is shown in part."""
        found = _MISSING.search(error)
        path = None if found is None else Path(found["path"])
        if path is None or not any(path.is_relative_to(place) for place in (*self.cell.hidden, *self.cell.reads)):
            return None
        with suppress(OSError):  # closed to this process too
            return path if path.exists() else None
        return None


_pools: WeakSet[Pool] = WeakSet()


@atexit.register
def _close_all() -> None:
    for pool in list(_pools):
        pool.close()
