"""Kernels in C, compiled on the machine itself by the compiler that is there; kept beside what is measured of it."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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
SECONDS = 60  # for the compiler
ADDRESS, NUMBER, REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float


@cache
def compiled(source: Path, **defined: int) -> ctypes.CDLL:
    """The library of a file of C, with these macros.

    Raises:
        NoCompilerError: there is none.
        ValueError: the compiler does not compile it.
        OSError, subprocess.TimeoutExpired: it cannot be run, or what it made cannot be kept or loaded.
    """
    compiler = c_compiler()
    options = (*FLAGS, f"-I{source.parent}", *(f"-D{name}={value}" for name, value in defined.items()))
    texts = [file.read_text() for file in (source, *sorted(source.parent.glob("*.h")))]
    made_of = "\n".join([*texts, *FLAGS, repr(defined), compiler, processor()])
    name = f"{source.stem}-{hashlib.sha256(made_of.encode()).hexdigest()[:16]}.so"
    with tempfile.TemporaryDirectory() as own:
        measured = os.environ.get(MEASURED)
        library = Path(measured).parent / name if measured else Path(own, name)
        if not library.is_file():
            made = Path(own, "made.so")
            command = [compiler, *options, str(source), "-o", str(made), "-lm"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS)
            if done.returncode:
                raise ValueError(f"{compiler} does not compile {source.name}: {done.stderr.strip()[:200]}")
            library.parent.mkdir(parents=True, exist_ok=True)
            beside = library.with_suffix(f".{os.getpid()}")
            shutil.copyfile(made, beside)  # the folder may be of another file system
            beside.replace(library)  # whole, however many processes make it at once
        return ctypes.CDLL(str(library))


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
