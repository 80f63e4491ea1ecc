"""What it costs a flow to keep many generators at work: processor seconds a step, and memory.

Steps are as in a run at staleness 1: two batches wait in one queue for generators, each of which gets leases of a size
of its own, and each lease that comes back is verified. The dispatch is the real one; workers only take their time:
simulated ones, or processes that sleep.
"""

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from statistics import median
from typing import Any

import numpy as np
import psutil
from distributed import Client

from flows.benches.processes import started, until
from flows.benches.simulated import UNEQUAL, Kind, SimulatedClient
from infra.cluster.machine import versions
from infra.cluster.placement import PlacementConfig
from infra.cluster.settings import dask_environment
from infra.dispatch.dispatch import Dispatch
from infra.dispatch.shares import Sizes
from infra.dispatch.speeds import Made
from infra.hosts import LOOPBACK
from tasks.verify import LATELY

STALENESS = 1
WARM_UP = 2  # steps that do not count
VERIFIERS = 2
READY_SECONDS = 600.0  # for the processes to be there
VERIFYING = 0.01  # seconds of a lease, which all of them share
PROMPTS = 8  # of a generator, in a step
STEPS_SHARE = 0.3  # of the seconds of so many prompts, which do not depend on how many they are
TOKENS = 1000  # of a prompt


@dataclass(frozen=True)
class GeneratorsFigure:
    """Of one number of generators."""

    generators: int
    leases: float  # a step, the mean
    step_seconds: float  # the mean
    coordinator_seconds: float  # of a processor, a step: the flow's process without the simulation
    scheduler_seconds: float  # the same of the scheduler's process; 0 where that is simulated
    share: float  # of both, of a step's seconds
    lease_ms: float  # of both, a lease, its verification included
    memory_mb: float  # of the flow's process, at the end
    growth: float  # of its memory: the median of the last third of the steps to that of the first, less 1
    deaths: int = 0  # of workers, in all steps
    stops: int = 0


def simulated(generators: int, seconds: float, failures: float, steps: int, seed: int) -> GeneratorsFigure:
    """`seconds` of a lease (the median), `failures` as a share of leases; `steps` that count."""
    kinds = [Kind("GENERATOR", generators, seconds, failures), Kind("VERIFIER", VERIFIERS, VERIFYING / VERIFIERS, 0.0)]
    client: Any
    with SimulatedClient(kinds, seed, versions()) as client, Dispatch(client, PlacementConfig()) as dispatch:
        run = _Run(dispatch, max(2, generators), seconds, lambda: seconds)
        at, computed, memory = [], [], []
        for _ in run.steps(WARM_UP + steps):
            at.append(time.monotonic())
            computed.append(time.process_time() - client.own_seconds())
            memory.append(taken())
        found = figure(generators, run.leases[WARM_UP:], at, computed, [0.0] * len(at), memory)
        return replace(found, deaths=client.deaths, stops=client.stops)


def asleep(generators: int, seconds: float, steps: int, seed: int) -> GeneratorsFigure:
    """The same of processes of Dask's on this machine, none of which dies; the seconds of each lease are drawn."""
    draws = np.random.default_rng(seed)
    with sleepers(generators) as (client, scheduler), Dispatch(client, PlacementConfig()) as dispatch:
        drawn = partial(_drawn, seconds, draws)
        run = _Run(dispatch, max(2, generators), seconds, drawn)
        at, computed, scheduled, memory = [], [], [], []
        for _ in run.steps(WARM_UP + steps):
            at.append(time.monotonic())
            computed.append(time.process_time())
            scheduled.append(sum(scheduler.cpu_times()[:2]))
            memory.append(taken())
        return figure(generators, run.leases[WARM_UP:], at, computed, scheduled, memory)


def _drawn(seconds: float, draws: np.random.Generator) -> float:
    return seconds * float(np.exp(UNEQUAL * draws.standard_normal()))


@contextmanager
def sleepers(generators: int) -> Iterator[tuple[Client, psutil.Process]]:
    """A client of a cluster of so many generators, each a process, and of verifiers; and its scheduler's process."""
    kinds = [("GENERATOR", generators), ("VERIFIER", VERIFIERS)]
    dask, environment = (sys.executable, "-m", "distributed.cli.dask_"), {**os.environ, **dask_environment()}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:

        def start(command: str, *words: str) -> subprocess.Popen[str]:
            words = "--scheduler-file", str(Path(folder) / "scheduler.json"), *words
            return stack.enter_context(started(*dask[:2], f"{dask[2]}{command}", *words, env=environment, cwd=folder))

        scheduler = start("scheduler", "--host", LOOPBACK, "--port", "0", "--no-dashboard")
        until((Path(folder) / "scheduler.json").exists, READY_SECONDS)
        for tag, count in kinds:
            for index in range(count):
                named = ("--name", f"{tag.lower()}-{index}", "--nthreads", "1", "--resources", f"{tag}=1 CPU=1")
                start("worker", "--no-nanny", "--no-dashboard", "--memory-limit", "0", *named)
        with Client(scheduler_file=str(Path(folder) / "scheduler.json"), set_as_default=False) as client:  # type: ignore[no-untyped-call]
            client.wait_for_workers(generators + VERIFIERS, READY_SECONDS)
            yield client, psutil.Process(scheduler.pid)


def figure(
    generators: int,
    leases: Sequence[int],
    at: Sequence[float],
    computed: Sequence[float],
    scheduled: Sequence[float],
    memory: Sequence[float],
) -> GeneratorsFigure:
    """Of the leases of each step that counts, and what was read at the end of each step: the clock, processor seconds
    of both so far, and bytes."""
    first = WARM_UP - 1
    counted = len(at) - WARM_UP
    step_seconds, own, schedulers = ((read[-1] - read[first]) / counted for read in (at, computed, scheduled))
    third = max(1, counted // 3)
    growth = median(memory[-third:]) / median(memory[WARM_UP : WARM_UP + third]) - 1
    mean = sum(leases) / len(leases)
    return GeneratorsFigure(
        generators,
        mean,
        step_seconds,
        own,
        schedulers,
        (own + schedulers) / step_seconds,
        1000 * (own + schedulers) / mean,
        memory[-1] / 1e6,
        growth,
    )


def taken() -> float:
    """Bytes that are this process's own."""
    return float(psutil.Process(os.getpid()).memory_full_info().uss)


def take_time(times: float, seconds: float) -> None:
    """What a process does of a lease."""
    time.sleep(times * seconds)


class PromptCounts(Sequence[tuple[Any, ...]]):
    """The leases of a batch, of which no more is known than how many prompts each has."""

    def __init__(self, counts: list[int]) -> None:
        self.counts = counts

    def __len__(self) -> int:
        return len(self.counts)

    def units(self, index: int) -> int:
        return self.counts[index]

    def cut(self, index: int, units: int) -> int:
        self.counts.append(self.counts[index] - units)
        self.counts[index] = units
        return len(self.counts) - 1


class _Prompts(PromptCounts):
    def __init__(self, prompts: int, lease_seconds: float, seconds: Callable[[], float]) -> None:
        super().__init__([prompts])
        self._lease_seconds, self._seconds = lease_seconds, seconds

    def __getitem__(self, index: Any) -> Any:
        return STEPS_SHARE + (1 - STEPS_SHARE) * self.counts[index] / PROMPTS, self._seconds()

    def sizes(self, _: int) -> Sizes | None:
        return Sizes(PROMPTS, self._lease_seconds)

    def made(self, index: int, _: object) -> Made:
        return Made(TOKENS, TOKENS * self.counts[index])


class _Run:
    """Batches on their way, as a flow has them."""

    def __init__(self, dispatch: Dispatch, generators: int, lease_seconds: float, seconds: Callable[[], float]) -> None:
        """`lease_seconds`: that a lease should take; `seconds`: of one of PROMPTS, drawn."""
        self.leases: list[int] = []  # of each step
        self._dispatch, self._prompts = dispatch, PROMPTS * generators
        self._lease_seconds, self._seconds = lease_seconds, seconds

    def steps(self, count: int) -> Iterator[int]:
        """Each step, when its batch is complete."""
        with ThreadPoolExecutor(STALENESS + 1) as pool:
            ahead = [pool.submit(self._collect, step) for step in range(STALENESS + 1)]
            for step in range(count):
                self.leases.append(ahead.pop(0).result())
                self._dispatch.timeline.take()  # as a run does, to write it
                ahead.append(pool.submit(self._collect, step + STALENESS + 1))
                yield step
            self._dispatch.stop()

    def _collect(self, step: int) -> int:
        """Generate the leases of a batch, and verify each as it comes in; how many were."""
        arrived: SimpleQueue[int | None] = SimpleQueue()
        with ThreadPoolExecutor(1) as pool:
            verified = pool.submit(self._verify, step, arrived)
            try:
                of = _Prompts(self._prompts, self._lease_seconds, self._seconds)
                for index, _ in self._dispatch.lease("generate", take_time, of, order=(step, 0), cuts=of):
                    arrived.put(index)
            finally:
                arrived.put(None)
            assert verified.result() == len(of)
            return len(of)

    def _verify(self, step: int, arrived: "SimpleQueue[int | None]") -> int:
        done = 0
        while arrived.get() is not None:
            parts = len(self._dispatch.offers("verify", lately=LATELY))  # as `tasks.verify.judged` does
            of = [(1.0, VERIFYING / VERIFIERS)] * parts
            list(self._dispatch.lease("verify", take_time, of, order=(step,)))
            done += 1
        return done
