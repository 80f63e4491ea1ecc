"""Workers forked from one process that has imported what their calls need.

To import torch and transformers takes 7 s of a core, which each worker that starts anew takes for itself.
"""

import atexit
import logging
import multiprocessing
import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

import distributed.utils
import psutil

from infra.cluster.machine import PACKAGES, installed
from infra.cluster.source import ROOT, SOURCE, digest_of

logger = logging.getLogger("distributed.rlvf")  # into Dask's file
MODULES = "RLVF_FORK_SERVER_MODULES"  # in the server's environment
START_METHOD = "distributed.worker.multiprocessing-method"  # the setting
HASH_SEED = "PYTHONHASHSEED"  # Dask sets it, for all workers
READ_AT_IMPORT = tuple(  # variables that the imports of workers read, by how they begin
    "HOME XDG_ LD_ MALLOC_ PYTHONPATH DASK_ FSSPEC_ NUMPY_ NPY_ OMP_ GOMP_ KMP_ MKL_ OPENBLAS_ TORCH_ PYTORCH_ ATEN_ "
    "CUDA_ HF_ HUGGINGFACE_ TRANSFORMERS_ ACCELERATE_".split()
)
_began_with: dict[str, str] | None = None  # the environment when the server was started


def library_environment(threads: int) -> dict[str, str]:
    """What numerical libraries read when they are loaded, for a process that computes with so many threads."""
    return {
        **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), str(threads)),
        # threads that wait by computing lose all when another program has one of their cores
        "OMP_WAIT_POLICY": os.environ.get("OMP_WAIT_POLICY", "passive"),
        "TOKENIZERS_PARALLELISM": "false",
    }


def start_method(device: str, modules: Iterable[str]) -> str:
    """How Dask starts workers of that device in this process: by `forkserver`, whose server is running then and has
    imported the modules, or by `spawn`.

    CUDA and macOS's frameworks do not survive a fork: only processors are used by forked workers, on Linux. A process
    has one server: where the environment, packages or our source have changed since its start, workers are spawned, as
    its modules are of the old ones. Before Python 3.11.1 every user of the machine could reach it (CVE-2022-42919).
    """
    global _began_with
    if device != "CPU" or sys.platform != "linux" or sys.version_info < (3, 11, 1):
        return "spawn"
    if _began_with is None:
        try:
            now = _read_by_imports()
            _start(modules)
        except OSError as error:
            logger.warning("workers are spawned, as there is no fork server: %r", error)
            return "spawn"
        _began_with = now
    return "forkserver" if can_fork() else "spawn"


def can_fork() -> bool:
    """Whether the server is alive and can be reached, and environment, packages and source are those of its start."""
    with suppress(OSError):  # a file of the source that is being replaced
        return _is_there() and _read_by_imports() == _began_with
    return False


def _is_there() -> bool:
    server: Any = forkserver._forkserver
    if server._forkserver_pid is None:
        return False
    with suppress(psutil.Error):
        alive = psutil.Process(server._forkserver_pid).status() != psutil.STATUS_ZOMBIE
        return alive and Path(server._forkserver_address).exists()
    return False


def _read_by_imports() -> dict[str, str]:
    """What the imports of a worker read: variables, packages, and our source. Raises OSError."""
    read = {name: value for name, value in os.environ.items() if name.startswith(READ_AT_IMPORT)}
    return {**read, **installed(PACKAGES), SOURCE: digest_of(ROOT)}


def _start(modules: Iterable[str]) -> None:
    # Dask would import all that it might preload, pandas among them, to see what is there.
    distributed.utils._forkserver_preload_set = True
    multiprocessing.set_forkserver_preload(["infra.cluster.forked"])
    added = {
        **library_environment(1),  # no library may start threads: of a process that has some, none can be forked
        HASH_SEED: "6640",  # Dask's
        MODULES: " ".join(dict.fromkeys(["infra.cluster.role", *modules])),
    }
    before = dict(os.environ)
    # The server has the blocked signals of this thread, and so have the workers (`RoleNanny`).
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP})
    os.environ.update(added)
    try:
        forkserver.ensure_running()
        atexit.register(_end, forkserver._forkserver._forkserver_pid)  # type: ignore[attr-defined]
    finally:
        for name in added:
            del os.environ[name]
        os.environ.update(before)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _end(server: int) -> None:
    """It would end by itself, but not before its imports are done. Workers do not need it any more."""
    with suppress(OSError):
        if os.waitpid(server, os.WNOHANG) == (0, 0):  # else the number may be another process's by now
            os.kill(server, signal.SIGKILL)
            os.waitpid(server, 0)
