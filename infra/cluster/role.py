"""One worker process for one role of a machine: its tags, its threads, its log file, its imports."""

import asyncio
import gc
import importlib
import logging
import multiprocessing.resource_tracker
import os
import signal
import sys
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dask.config
from distributed import Nanny, Status, Worker

from infra.cluster import pace
from infra.cluster.fork_server import HASH_SEED, START_METHOD, can_fork, library_environment
from infra.cluster.placement import METRIC
from infra.cluster.settings import DEVICE_PROCESSES, MEASURED, MODELS_GB, measured_file
from infra.logs import log_at

logger = logging.getLogger(__name__)
CLOSE_SECONDS = 2.0  # what a busy worker gets to finish its call at the end
DASK_LOGGERS = ("distributed", "tornado")


@dataclass(frozen=True)
class Role:
    """One worker process to be."""

    name: str
    tags: tuple[str, ...]
    threads: int
    warm: Sequence[str]  # the modules that are imported before the first call
    sharing: int = 1  # processes of the machine that compute on its device, itself included
    memory: float | None = None  # GB of models on its device at a time


class RoleWorker(Worker):
    """A worker whose output goes to a file, and whose executor starts with the imports of its role.

    The import is the first job of the only thread that runs calls: the worker is up at once, the first call finds
    everything imported, and so does the first call after a restart. What the scheduler sends is not read before: to
    unpickle it imports the same modules in the event loop's thread, which would find a package half made that takes its
    own place in `sys.modules`, as transformers does.
    """

    def __init__(
        self,
        *args: Any,
        log_file: str | None = None,
        warm: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        """`environment`: of the process that asked for this one; one that is forked has its fork server's."""
        if environment is not None:
            for name in os.environ.keys() - environment.keys() - {HASH_SEED}:
                del os.environ[name]
            os.environ.update(environment)
        if log_file is not None:
            out = os.open(log_at(Path(log_file)), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            # The descriptors, not sys.stderr: native libraries write there too.
            os.dup2(out, 1)
            os.dup2(out, 2)
            os.close(out)
        self._warm = warm
        self._warmed: Future[None] | None = None
        super().__init__(*args, metrics={METRIC: pace.report}, **kwargs)

    def start_http_server(self, *_: Any, **__: Any) -> None:
        """Serve no pages: they are plain HTTP without a password, and the scheduler's tell the same."""

    async def start_unsafe(self) -> Any:
        self._warmed = self.executors["default"].submit(import_all, self._warm)
        return await super().start_unsafe()  # type: ignore[no-untyped-call]

    async def handle_scheduler(self, comm: Any) -> None:
        if self._warmed is not None:
            await asyncio.wrap_future(self._warmed)
        await super().handle_scheduler(comm)


def import_all(modules: Sequence[str]) -> None:
    """Import them, and have torch compute with this process's number of threads. Nothing of a module is ever garbage:
    to look for it there takes a fifth of the time of importing torch and transformers, and some of every full
    collection later."""
    gc.disable()
    try:
        for module in modules:
            try:
                importlib.import_module(module)
            except Exception:
                logger.exception("cannot import %s ahead of the first call", module)  # the call raises it to its caller
    finally:
        gc.freeze()
        gc.enable()
    if "torch" in sys.modules and (threads := os.environ.get("OMP_NUM_THREADS")):
        sys.modules["torch"].set_num_threads(int(threads))  # of a fork; where torch was imported here, it has them


def start_resource_tracker() -> None:
    """Start multiprocessing's resource tracker so that it survives the terminal's end, and removes without a warning
    there what a worker that was killed in its work has left (tqdm's lock)."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})  # inherited, like the next
    given = os.environ.get("PYTHONWARNINGS")
    os.environ["PYTHONWARNINGS"] = ",".join(filter(None, (given, "ignore:resource_tracker:UserWarning")))
    try:
        multiprocessing.resource_tracker.ensure_running()
    finally:
        del os.environ["PYTHONWARNINGS"]
        if given is not None:
            os.environ["PYTHONWARNINGS"] = given
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class RoleNanny(Nanny):
    """A nanny whose worker sees neither the Ctrl-C nor the end of the terminal, and gets little time to end."""

    async def instantiate(self) -> Status:
        # The terminal sends both to every process of the group. The flow alone handles them and stops the workers in
        # order. A spawned process inherits the blocked signals of this thread, so no moment of a worker's life is open.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
        if dask.config.get(START_METHOD) == "forkserver" and not can_fork():
            dask.config.set({START_METHOD: "spawn"})
        return await super().instantiate()

    async def kill(self, timeout: float = CLOSE_SECONDS, reason: str = "nanny-kill") -> None:
        await super().kill(timeout=min(timeout, CLOSE_SECONDS), reason=reason)


def role_options(role: Role, host: str, log_dir: Path | None) -> dict[str, Any]:
    """The arguments of a role's `RoleNanny`."""
    env = {
        **library_environment(role.threads),
        DEVICE_PROCESSES: str(role.sharing),
        MEASURED: measured_file(),
        **({} if role.memory is None else {f"{MODELS_GB}{role.tags[0]}": str(role.memory)}),
    }
    return {
        "name": role.name,
        "nthreads": 1,
        "memory_limit": 0,
        "host": host,
        "resources": dict.fromkeys(role.tags, 1),
        "env": env,
        "environment": {**os.environ, **env},
        "worker_class": RoleWorker,
        "log_file": None if log_dir is None else str(log_dir / f"{role.name}.log"),
        "warm": role.warm,
    }


class LogFile(logging.FileHandler):
    """A log that ignores failed writes, as on a full disk: the code that needs the disk raises."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 - the name is logging's
        pass

    def close(self) -> None:
        with suppress(OSError):
            super().close()


@contextmanager
def logs_to(path: Path) -> Iterator[None]:
    """Send what Dask logs in this process to a file instead of the terminal."""
    to_file = LogFile(log_at(path), delay=True)
    to_file.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    # By name and not by their handlers: Dask gives its loggers none if the root has one when it is imported.
    names = {name for name in logging.root.manager.loggerDict if name.partition(".")[0] in DASK_LOGGERS}
    loggers = [logging.getLogger(name) for name in names.union(DASK_LOGGERS)]
    before = [(each, each.handlers[:], each.propagate) for each in loggers]
    for each, _, _ in before:
        each.handlers[:], each.propagate = [to_file], False
    try:
        yield
    finally:
        for each, handlers, propagate in before:
            each.handlers[:], each.propagate = handlers, propagate
        to_file.close()
