"""The Dask cluster: the one of the user, or one local process per role for the length of a run."""

import importlib
import importlib.metadata
import logging
import multiprocessing.resource_tracker
import os
import platform
import re
import shutil
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

import dask.config
from distributed import Client, Nanny, Scheduler, SpecCluster, Status, Worker
from pydantic import BaseModel, ConfigDict, Field, field_validator

from infra.reach import UnreachableError, parse_address, reach
from infra.security import SecurityError, dask_security
from infra.services import rlvf_home

logger = logging.getLogger(__name__)
LOCALHOST = "127.0.0.1"
ADDRESS = re.compile(r"([a-z]+://)?[^\s/]+:\d{1,5}")
CLOSE_SECONDS = 2.0  # what a busy worker gets to finish its call when the run ends
CONNECT_SECONDS = 10.0


# What a scheduler needs on which `infra.dispatch` hands out the work.
SCHEDULER_SETTINGS = {
    "distributed.scheduler.allowed-failures": 0,  # a worker's death is known at once, and counted by the dispatch
    "distributed.scheduler.no-workers-timeout": "60s",
    "distributed.scheduler.work-stealing": False,
    "distributed.scheduler.worker-ttl": "60s",  # so long a lease waits for a machine whose lid was closed
}


def scheduler_environment() -> dict[str, str]:
    """`SCHEDULER_SETTINGS` for the environment of `dask scheduler`."""
    return {
        "DASK_" + name.replace(".", "__").replace("-", "_").upper(): str(value)
        for name, value in SCHEDULER_SETTINGS.items()
    }


class ClusterConfig(BaseModel):
    """Where the work runs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    scheduler: str | None = Field(
        None,
        description="address of a Dask scheduler to join (tls://host:8786); none takes $RLVF_SCHEDULER, or starts a "
        "local one",
    )
    generators: int = Field(1, description="local processes that sample completions", ge=0)
    verifiers: int = Field(1, description="local processes that judge completions", ge=0)
    threads: int | None = Field(
        None, description="threads of the trainer and of each generator; none divides the cores among them", ge=1
    )
    device: Literal["auto", "cuda", "mps", "cpu"] = Field(
        "auto", description="the device tag of the local trainer and generators"
    )

    @field_validator("scheduler")
    @classmethod
    def _has_a_port(cls, address: str | None) -> str | None:
        if address is not None and not ADDRESS.fullmatch(address):
            raise ValueError("is no address of a scheduler; write it like tls://192.168.1.5:8786")
        return address


class ClusterError(ValueError):
    """The cluster that was asked for cannot be reached."""


def detect_device() -> str:
    """The device tag of this machine, found without importing torch: `CUDA`, `MPS` or `CPU`."""
    try:
        cpu_build = importlib.metadata.version("torch").endswith("+cpu")
    except importlib.metadata.PackageNotFoundError:
        cpu_build = False
    nvidia = any(Path(path).exists() for path in ("/proc/driver/nvidia/version", "/dev/nvhost-gpu", "/dev/nvmap"))
    hidden = os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1")
    if (nvidia or shutil.which("nvidia-smi")) and not (cpu_build or hidden):
        return "CUDA"
    return "MPS" if sys.platform == "darwin" and platform.machine() == "arm64" else "CPU"


def cores() -> int:
    """The cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class LocalWorker(Worker):
    """A worker whose output goes to a file, and whose executor starts with the imports of its role.

    The import is the first job of the only thread that runs calls: the worker is up at once, the first call finds
    everything imported, and so does the first call after a restart.
    """

    def __init__(self, *args: Any, log_file: str | None = None, warm: str | None = None, **kwargs: Any) -> None:
        if log_file is not None:
            out = os.open(log_file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
            # The descriptors, not sys.stderr: native libraries write there too.
            os.dup2(out, 1)
            os.dup2(out, 2)
            os.close(out)
        self._warm = warm
        super().__init__(*args, **kwargs)

    async def start_unsafe(self) -> Any:
        started = await super().start_unsafe()  # type: ignore[no-untyped-call]
        if self._warm is not None:
            self.executors["default"].submit(_import, self._warm)
        return started


def _import(module: str) -> None:
    try:
        importlib.import_module(module)
    except ImportError:
        logger.exception("cannot import %s ahead of the first call", module)  # the call itself raises it to its caller


class LocalNanny(Nanny):
    """A nanny whose worker does not see the Ctrl-C of the terminal, and which does not wait long for it at the end."""

    async def instantiate(self) -> Status:
        # The terminal sends SIGINT to every process of the group. The flow alone handles it and stops the workers in
        # order. A blocked signal is inherited through the thread that spawns, so no moment of a worker's life is open.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        return await super().instantiate()

    async def kill(self, timeout: float = CLOSE_SECONDS, reason: str = "nanny-kill") -> None:
        await super().kill(timeout=min(timeout, CLOSE_SECONDS), reason=reason)


def _worker(name: str, tags: tuple[str, ...], threads: int, log_dir: Path | None, warm: str | None) -> dict[str, Any]:
    count = str(threads)
    return {
        "cls": LocalNanny,
        "options": {
            "name": name,
            "nthreads": 1,
            "memory_limit": 0,
            "host": LOCALHOST,
            "resources": dict.fromkeys(tags, 1),
            "env": {
                **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), count),
                "TOKENIZERS_PARALLELISM": "false",
            },
            "worker_class": LocalWorker,
            "log_file": None if log_dir is None else str(log_dir / f"{name}.log"),
            "warm": warm,
        },
    }


def workers(
    config: ClusterConfig, *, log_dir: Path | None = None, preload: Mapping[str, str] | None = None
) -> dict[str, dict[str, Any]]:
    """The local workers as `SpecCluster` wants them, by name. `preload` maps a role tag to a module."""
    warm = preload or {}
    device = detect_device() if config.device == "auto" else config.device.upper()
    threads = config.threads or max(1, cores() // (1 + config.generators))
    spec = {"trainer": _worker("trainer", (device, "TRAINER"), threads, log_dir, warm.get("TRAINER"))}
    for index in range(config.generators):
        name = f"generator-{index}"
        spec[name] = _worker(name, (device, "GENERATOR"), threads, log_dir, warm.get("GENERATOR"))
    for index in range(config.verifiers):
        name = f"verifier-{index}"
        spec[name] = _worker(name, ("CPU", "VERIFIER"), 1, log_dir, warm.get("VERIFIER"))
    return spec


@contextmanager
def cluster(
    config: ClusterConfig, *, log_dir: Path | None = None, preload: Mapping[str, str] | None = None
) -> Iterator[Client]:
    """A client of `config.scheduler`, or of a cluster that lives as long as the context.

    A local worker that dies is restarted under its name and with its tags; a call that it ran fails at once with
    `KilledWorker`. `preload` names the module that the workers of a role tag import before their first call. What the
    processes have to say goes to files in `log_dir`, or to the terminal if there is none.
    Raises `ClusterError` when `config.scheduler` does not answer.
    """
    named = os.environ.get("RLVF_SCHEDULER") or None
    if config.scheduler is not None:
        with _joined(config.scheduler, f"cluster.scheduler = {config.scheduler!r}") as client:
            yield client
        return
    if named is not None:
        with _joined(named, f"RLVF_SCHEDULER = {named!r}") as client:
            yield client
        return
    with ExitStack() as stack:
        if log_dir is not None:
            log_dir.mkdir(parents=True, exist_ok=True)
            stack.enter_context(_logs_to(log_dir / "dask.log"))
        stack.enter_context(_environment_kept())
        stack.enter_context(
            dask.config.set(
                {
                    **SCHEDULER_SETTINGS,
                    "distributed.scheduler.worker-ttl": None,  # one machine: all sleep and wake together
                    "distributed.comm.require-encryption": None,  # between processes on the loopback interface
                    # So long after a death the cluster looks whether the worker is there and closes its nanny if not:
                    # one that is away again, because it died a second time, would never come back.
                    "distributed.deploy.lost-worker-timeout": "1000 days",
                    # Its defaults (one OpenMP thread, trim every 64 kB) are not for processes that compute.
                    "distributed.nanny.pre-spawn-environ": {},
                }
            )
        )
        # Started here because its first start unblocks SIGINT in the thread that caused it: LocalNanny's, otherwise.
        multiprocessing.resource_tracker.ensure_running()
        dashboard = find_spec("bokeh") is not None
        local = SpecCluster(  # type: ignore[no-untyped-call]
            scheduler={
                "cls": Scheduler,
                "options": {
                    "host": LOCALHOST,
                    "port": 0,
                    "dashboard": dashboard,
                    "dashboard_address": f"{LOCALHOST}:0",
                },
            },
            workers=workers(config, log_dir=log_dir, preload=preload),
            name="rlvf",
        )
        stack.callback(local.close)
        client = Client(local, set_as_default=False)  # type: ignore[no-untyped-call]
        yield stack.enter_context(client)


@contextmanager
def _joined(address: str, named: str) -> Iterator[Client]:
    """A client of a scheduler that is there already; `named` is how the user wrote its address."""
    home = rlvf_home()
    instead = "; start one with `rlvf up` or `dask scheduler`, or leave it out to use this machine"
    try:
        where = parse_address(address, home)
        deadline = time.monotonic() + CONNECT_SECONDS
        while True:
            try:
                reach(where, home)
                break
            except UnreachableError as error:
                if not error.may_come_back or time.monotonic() > deadline:
                    raise
            time.sleep(0.25)
        security = dask_security(home) if where.scheme == "tls" else None
        client = Client(  # type: ignore[no-untyped-call]
            str(where), timeout=CONNECT_SECONDS, set_as_default=False, security=security
        )
    except SecurityError as error:
        raise ClusterError(f"{named}: {error}") from error
    except UnreachableError as error:
        raise ClusterError(f"{named} does not answer: {error.why}{instead if error.may_come_back else ''}") from error
    except (OSError, ValueError) as error:
        raise ClusterError(f"{named} does not answer ({error}){instead}") from error
    with client:
        yield client


@contextmanager
def _environment_kept() -> Iterator[None]:
    """A nanny sets PYTHONHASHSEED in its own process, here the flow's, for its workers to inherit: take it back."""
    before = os.environ.get("PYTHONHASHSEED")
    try:
        yield
    finally:
        os.environ.pop("PYTHONHASHSEED", None)
        if before is not None:
            os.environ["PYTHONHASHSEED"] = before


@contextmanager
def _logs_to(path: Path) -> Iterator[None]:
    """Send what Dask logs in this process to a file instead of the terminal."""
    to_file = logging.FileHandler(path, delay=True)
    to_file.setFormatter(logging.Formatter("%(asctime)s %(name)s %(levelname)s %(message)s"))
    loggers = [
        logging.getLogger(name)
        for name in ("distributed", *logging.root.manager.loggerDict)
        if name.partition(".")[0] in ("distributed", "tornado") and logging.getLogger(name).handlers
    ]
    before = [(each, each.handlers[:]) for each in dict.fromkeys(loggers)]
    for each, _ in before:
        each.handlers[:] = [to_file]
    try:
        yield
    finally:
        for each, handlers in before:
            each.handlers[:] = handlers
        to_file.close()
