"""Whether this machine's processor multiplies bfloat16 faster than float32, as with AMX or AVX512-BF16: measured once,
and kept."""

import fcntl
import hashlib
import json
import math
import os
import platform
import re
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from functools import cache
from pathlib import Path

import torch
from torch.nn.functional import linear

MEASURED = "RLVF_MEASURED"  # in the environment: the file that keeps what was measured; it may be absent
FASTER = 1.5  # times as fast, to pay for what is not multiplied
ROWS, SIDE = 64, 1024  # of the product: a decoding step of a model of 0.6B parameters
TURNS = 20
# of x86 the first two, of ARM the others
TOLD = "model name|flags|Features|CPU implementer|CPU architecture|CPU variant|CPU part"


@cache
def fast_at_bfloat16() -> bool:
    """Whether a large model computes faster in bfloat16 than in float32 on this processor."""
    machine = f"{processor()}, torch {torch.__version__}"
    file = Path(os.environ.get(MEASURED) or os.devnull)
    with ExitStack() as stack:
        known: dict[str, float] = {}
        with suppress(OSError):  # else the next process measures again
            if file.is_file() or not file.exists():  # a pipe would be waited for
                file.parent.mkdir(parents=True, exist_ok=True)
                kept = stack.enter_context(file.open("a"))
                fcntl.flock(kept, fcntl.LOCK_EX)  # a trainer and a generator start together
                known = _known(file)
        if machine not in known:
            known[machine] = _speed(torch.bfloat16) / _speed(torch.float32)
            with suppress(OSError):
                if file.is_file():
                    file.write_text(json.dumps(known, indent=2))
    return known[machine] >= FASTER


def _speed(dtype: torch.dtype) -> float:
    """Products a second of one core: several would wait for each other on a busy machine."""
    inputs, weight = torch.ones(ROWS, SIDE, dtype=dtype), torch.ones(SIDE, SIDE, dtype=dtype)

    def seconds() -> float:
        began = time.thread_time()
        linear(inputs, weight)
        return time.thread_time() - began

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad():
            return 1 / max(1e-9, min(seconds() for _ in range(TURNS)))  # the library prepares itself in the first
    finally:
        torch.set_num_threads(threads)


def processor() -> str:
    """Its name, and what it can do: one of a virtual machine is called the same with and without AMX."""
    name, can = platform.processor() or platform.machine(), ""
    with suppress(OSError):
        said = re.findall(rf"^({TOLD})\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
        name = dict(said).get("model name", name)
        can = "\n".join(
            sorted({value for kind, value in said if kind != "model name"})
        )  # cores may be of several kinds
    if sys.platform == "darwin":
        asked = subprocess.run(["sysctl", "-n", "machdep.cpu.brand_string"], capture_output=True, text=True)
        name = asked.stdout.strip() or name
    return f"{name}, {hashlib.sha256(can.encode()).hexdigest()[:8]}"


def _known(file: Path) -> dict[str, float]:
    """What was measured, by machine: several may share a home. What cannot be read is measured again."""
    with suppress(OSError, ValueError, RecursionError):
        kept = json.loads(file.read_text())
        if isinstance(kept, dict) and all(isinstance(speed, float) and 0 < speed < math.inf for speed in kept.values()):
            return kept
    return {}
