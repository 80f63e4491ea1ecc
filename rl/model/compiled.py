"""Kernels in C, compiled on the machine itself by the compiler that is there; kept beside what is measured of it."""

import ctypes
import hashlib
import os
import signal
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from copy import copy
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rl.compiler import NoCompilerError, c_compiler
from rl.model.processor import MEASURED, processor

# sums in any order, as vectors take; infinities and what is no number stay as they are
FLAGS = (
    *("-O3", "-march=native", "-std=gnu11", "-shared", "-fPIC"),
    *("-fno-math-errno", "-fno-trapping-math", "-fassociative-math", "-fno-signed-zeros", "-freciprocal-math"),
)
HEADER = Path(__file__).with_name("exponential.h")  # of all
SECONDS = 30  # for the compiler
ADDRESS, NUMBER, REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


def compiled(source: Path, **defined: int) -> ctypes.CDLL:
    """The library of a file of C, with these macros.

    Raises:
        NoCompilerError: there is none.
        ValueError: the compiler does not compile it.
        OSError: it cannot be run, or what it made cannot be loaded.
    """
    found = attempted(source, **defined)
    if isinstance(found, Exception):
        raise copy(found)
    return found


@cache
def attempted(source: Path, **defined: int) -> ctypes.CDLL | Exception:
    """What came of it, once a process. An error is kept without the frames that it has passed, and the models in them;
    a copy would have them where Dask is loaded, whose tblib has exceptions copied whole."""
    try:
        return _kept(source, **defined)
    except (NoCompilerError, ValueError, OSError) as error:
        error.__cause__ = error.__context__ = None
        return error.with_traceback(None)


def _kept(source: Path, **defined: int) -> ctypes.CDLL:
    """The library, from where it is kept, or made and kept there."""
    compiler = c_compiler()
    options = (*FLAGS, *(f"-D{name}={value}" for name, value in defined.items()))
    made_of = "\n".join([source.read_text(), HEADER.read_text(), *options, *compiler, processor()])
    name = f"{source.stem}-{_digest(made_of.encode())}"
    measured = os.environ.get(MEASURED)
    folder = Path(measured).parent if measured else None
    for kept in folder.glob(f"{name}-*.so") if folder is not None else ():
        with suppress(OSError):  # nothing that lies there may be run
            if kept.name == f"{name}-{_digest(kept.read_bytes())}.so":  # a part of one would end this process
                return ctypes.CDLL(str(kept))
    with tempfile.TemporaryDirectory() as own:
        made = Path(own, "made.so")
        _compile([*compiler, *options, str(source), "-o", str(made), "-lm"])
        loaded = ctypes.CDLL(str(made))
        if folder is not None:
            with suppress(OSError):  # else the next process compiles it again
                _keep(made.read_bytes(), folder / f"{name}-{_digest(made.read_bytes())}.so")
        return loaded


def _compile(command: Sequence[str]) -> None:
    with subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            _, said = process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # what it has started, too
            raise ValueError(f"{command[0]} did not compile them in {SECONDS} s") from None
    if process.returncode:
        raise ValueError(f"{command[0]} does not compile them: {said.strip()[:200]}")


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _keep(made: bytes, kept: Path) -> None:
    """Whole, however many processes, of however many machines, do so at once."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=kept.parent, delete=False) as beside:
        try:
            beside.write(made)
            beside.flush()
            os.fsync(beside.fileno())
            Path(beside.name).replace(kept)
        except OSError:
            Path(beside.name).unlink(missing_ok=True)
            raise


def bounds(rows: int, least: int) -> list[int]:
    """The bounds of so many rows for each of torch's threads, of at least so many rows each."""
    count = max(1, min(torch.get_num_threads(), rows // least))
    return [rows * part // count for part in range(count + 1)]


def in_parts(
    function: Callable[..., int], between: Sequence[int], given: Sequence[Any], tensors: Sequence[Tensor | None]
) -> None:
    """``function(first, last, *given)`` of the rows between any two bounds, beside each other. The ``tensors`` whose
    addresses are given stay until every part is done, also where the caller is interrupted.

    Raises:
        MemoryError: a part says 1. IndexError: one says 2.
    """

    def part(first: int, last: int, _: object = tensors) -> int:
        return function(first, last, *given)

    if len(between) == 2:
        said = {part(*between)}
    else:
        threads = _threads(os.getpid(), max(1, torch.get_num_threads() - 1))
        others = [threads.submit(part, *each) for each in pairwise(between[1:])]
        said = {part(*between[:2]), *(other.result() for other in others)}
    if 1 in said:
        raise MemoryError("no memory for the scores of a row")
    if 2 in said:
        raise IndexError("a key that is to be kept outside of what there is")


@cache
def _threads(_: int, count: int) -> ThreadPoolExecutor:
    """So many of this process: what is in C leaves the interpreter to others."""
    return ThreadPoolExecutor(count, "compiled")
