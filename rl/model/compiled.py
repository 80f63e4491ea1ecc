"""Kernels in C, compiled on the machine itself by the compiler that is there; kept beside what is measured of it."""

import ctypes
import hashlib
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from rl.compiler import c_compiler
from rl.model.processor import MEASURED, processor

# sums in any order, as vectors take; infinities and what is no number stay as they are
FLAGS = (
    *("-O3", "-march=native", "-std=gnu11", "-shared", "-fPIC"),
    *("-fno-math-errno", "-fno-trapping-math", "-fassociative-math", "-fno-signed-zeros", "-freciprocal-math"),
)
HEADER = Path(__file__).with_name("exponential.h")  # of all
SECONDS = 60  # for the compiler
ADDRESS, NUMBER, REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


@cache
def compiled(source: Path, **defined: int) -> ctypes.CDLL:
    """The library of a file of C, with these macros.

    Raises:
        NoCompilerError: there is none.
        ValueError: the compiler does not compile it.
        OSError, subprocess.TimeoutExpired: it cannot be run, or what it made cannot be loaded.
    """
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
        command = [*compiler, *options, str(source), "-o", str(made), "-lm"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
        if done.returncode:
            raise ValueError(f"{compiler[0]} does not compile {source.name}: {done.stderr.strip()[:200]}")
        loaded = ctypes.CDLL(str(made))
        if folder is not None:
            with suppress(OSError):  # else the next process compiles it again
                _keep(made.read_bytes(), folder / f"{name}-{_digest(made.read_bytes())}.so")
        return loaded


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _keep(made: bytes, kept: Path) -> None:
    """Whole, however many processes do so at once."""
    kept.parent.mkdir(parents=True, exist_ok=True)
    beside = kept.with_suffix(f".{os.getpid()}")
    try:
        beside.write_bytes(made)
        beside.replace(kept)
    finally:
        beside.unlink(missing_ok=True)


def bounds(rows: int, least: int) -> list[int]:
    """The bounds of so many rows for each of torch's threads, of at least so many rows each."""
    count = max(1, min(torch.get_num_threads(), rows // least))
    return [rows * part // count for part in range(count + 1)]


def in_parts(function: Callable[..., int], between: Sequence[int], *given: Any) -> None:
    """``function(first, last, *given)`` of the rows between any two bounds, beside each other. Raises MemoryError where
    one says so."""
    others = [_threads().submit(function, *part, *given) for part in pairwise(between[1:])]
    failed = function(*between[:2], *given)
    if any([failed, *(other.result() for other in others)]):
        raise MemoryError("no memory for the scores of a row")


@cache
def _threads() -> ThreadPoolExecutor:
    """Of this process: what is in C leaves the interpreter to others."""
    return ThreadPoolExecutor(max(1, torch.get_num_threads() - 1), "compiled")
