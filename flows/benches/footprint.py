"""What a place takes while it works: memory by kind of process, and disk.

Memory is what a process has that no file holds, at the age at which it is warm: of a fork the pages too that it shares
with its server, which it writes to in time and then has for itself. Processes of one kind follow each other where they
are killed; the kind is flat where the median of the last third of what was read, over all of them, is at
most a tenth above that of the first third.
"""

import os
import threading
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

import psutil

from flows.benches.check import Check
from flows.benches.place import MarkedHome
from flows.benches.processes import FORK_SERVER, SPAWNED, marked

T = TypeVar("T")

EVERY = 3.0  # seconds between two readings
GROWTH = 0.1
NOISE = 4e6  # bytes that are no growth: of a small process a tenth is less
KEPT_GROWTH = 0.25  # of weights and checkpoints: less than one of three checkpoints that is not removed
STEP_MB = 1.0  # that a step may add to the home: completions, metrics, what Prefect and MLflow keep, lines of logs
FORKING = "fork server"
READINGS = 5  # in a third, below which nothing is said of a kind


@dataclass(frozen=True)
class Reading:
    """Of one process, at one moment."""

    pid: int
    at: float
    taken: int  # bytes


def kind_of(words: Sequence[str], above: str) -> str:
    """What a process is, by its command line and what has started it; empty for one that does not count."""
    line = " ".join(words)
    if not words or "resource_tracker" in line:
        return ""
    if FORK_SERVER in line:  # of what it has forked too
        return above.replace(FORKING, "process") if above.endswith(FORKING) else f"{above}'s {FORKING}"
    if SPAWNED in line:
        return f"{above}'s process"
    if (at := next((at for at, word in enumerate(words) if "flows.cli import main" in word), None)) is not None:
        command, name = words[at + 1], words[words.index("--name") + 1] if "--name" in words else ""
        return f"rlvf {command} {name}".strip()
    above = "supervisor of " if "supervisor.py" in line else ""  # it is given the command that it keeps alive
    words = words[words.index("-m") + 1 :] if "-m" in words[:-1] else [Path(word).name for word in words[:2]]
    return above + " ".join([words[0], *(word for word in words[1:2] if not word.startswith("-"))])


def third(found: Sequence[T], last: bool = False) -> Sequence[T]:
    """The first of three parts, or the last."""
    count = len(found) // 3
    return found[len(found) - count :] if last else found[:count]


class Footprint:
    """Reads what a place takes, in a thread."""

    def __init__(self, place: MarkedHome, run: Path, warm: float) -> None:
        """`run`: the folder of its run; `warm`: seconds of a process's life that do not count."""
        self._place, self._run, self._warm = place, run, warm
        self._read: dict[str, list[Reading]] = defaultdict(list)
        self._disk: dict[str, list[int]] = defaultdict(list)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Read until the context ends. Raises what a reading raised."""
        over = threading.Event()
        with ThreadPoolExecutor(1, "footprint") as pool:
            watching = pool.submit(self._watch, over)
            try:
                yield
            finally:
                over.set()
            watching.result()

    def _watch(self, over: threading.Event) -> None:
        while not over.wait(EVERY):
            self.read()

    def read(self) -> None:
        """Read once."""
        for process in marked(self._place.mark):
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied, IndexError):
                age = time.time() - process.create_time()
                if age >= self._warm and (kind := self._kind(process)):
                    self._read[kind].append(Reading(process.pid, time.time(), _own(process)))
        kept, home = [_size(self._run / name) for name in ("weights", "state")], _size(self._place.home)
        if min(kept):  # else it is away
            self._disk["weights and checkpoints"].append(sum(kept))
            self._disk["the home"].append(home)

    def _kind(self, process: psutil.Process) -> str:
        words, above = process.cmdline(), process.parent()
        of_workers = any(SPAWNED in word or FORK_SERVER in word for word in words)
        return kind_of(words, self._kind(above) if of_workers and above is not None else "")

    def memory(self) -> dict[str, dict[str, float]]:
        """Of each kind that was read often enough: MB in the first and in the last third, and how many processes."""
        found = {}
        for kind, read in sorted(self._read.items()):
            if len(third(read)) >= READINGS:
                first, last = (median(each.taken for each in third(read, end)) / 1e6 for end in (False, True))
                found[kind] = {"first": first, "last": last, "processes": len({each.pid for each in read})}
        return found

    def disk(self) -> dict[str, list[float]]:
        """MB at each reading."""
        return {name: [size / 1e6 for size in sizes] for name, sizes in self._disk.items()}

    def checks(self, steps: int) -> Iterator[Check]:
        """Of a soak of so many steps."""
        memory = self.memory()
        for kind, taken in memory.items():
            grown = taken["last"] / taken["first"] - 1
            flat = grown <= GROWTH or taken["last"] - taken["first"] <= NOISE / 1e6
            yield Check(f"memory of {kind}", flat, f"{taken['first']:.0f} → {taken['last']:.0f} MB ({grown:+.1%})")
        yield Check("memory was read", bool(memory), f"of {len(memory)} kinds of processes")
        kept, home = (self._disk[name] for name in ("weights and checkpoints", "the home"))
        first, last = (median(third(kept, end) or [0]) for end in (False, True))
        figure = f"{first / 1e6:.1f} → {last / 1e6:.1f} MB"
        yield Check("weights and checkpoints are bounded", 0 < last <= (1 + KEPT_GROWTH) * first, figure)
        added = (home[-1] - home[0]) / 1e6 / max(1, steps) if home else 0.0
        yield Check("disk of the home", bool(home) and added <= STEP_MB, f"{added:.3f} MB a step")


def _own(process: psutil.Process) -> int:
    """Bytes that no file holds, in swap too; where the system does not tell, those that nobody shares. Raises
    psutil.NoSuchProcess."""
    try:
        told = Path(f"/proc/{process.pid}/smaps_rollup").read_text("ascii")
    except ProcessLookupError:
        told = ""
    except OSError:
        return int(process.memory_full_info().uss)
    if not told:  # it has ended
        raise psutil.NoSuchProcess(process.pid)
    return sum(int(line.split()[1]) * 1024 for line in told.splitlines() if line.startswith(("Anonymous:", "Swap:")))


def _size(folder: Path) -> int:
    """Bytes of all files in it, less what is removed meanwhile."""
    total = 0
    for inside, _, names in os.walk(folder):  # which passes over folders that are removed meanwhile
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(inside, name)).st_size  # noqa: PTH118
    return total
