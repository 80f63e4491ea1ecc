"""A run that something happens to all the time: random faults of real processes, and what must not grow or be lost.

In a home of its own, on loopback: `rlvf up`, four machines (`rlvf worker`: two generators, a trainer, a verifier) and a
run of `rlvf train` that goes on until the time is over. All faults are of those that a run survives by itself, but for
the flow's own death and a run's folder that is away, after which it is resumed.
"""

import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from signal import SIG_IGN, SIGINT, SIGKILL, SIGTERM, default_int_handler, getsignal, signal
from subprocess import TimeoutExpired
from typing import Any

import psutil

from flows.benches.check import Check
from flows.benches.faults import away, stopped
from flows.benches.footprint import Footprint
from flows.benches.processes import until, workers_of
from flows.benches.stage import END_SECONDS, MACHINES, OPTIONS, PATIENCE, Stage, staged, times
from infra.cluster.timeline import read_sessions

RUN = "soak"
STEPS = 1_000_000  # more than it can make
AWAY = (3.0, 12.0)  # seconds of what comes back by itself
SLICE_SECONDS = "0.05"  # of a lease that takes longer than that beside a fault
STUCK_SECONDS = 180.0  # a step may take: three of the slowest recoveries, of a scheduler or of a flow, one in the other
STORAGE = "the folder of all runs is away"  # a run whose folder is not there when it writes ends, and is resumed


@dataclass(frozen=True)
class Planned:
    """A fault of the list."""

    at: float  # seconds since the first step
    what: str
    seconds: float  # that it lasts, where it comes back by itself


@dataclass
class Soak:
    """A soak that goes on."""

    stage: Stage
    say: Callable[[str], None]
    flow: Any = None  # its process
    lost: bool = False  # whether the runs' folder was away since it began
    died: list[str] = field(default_factory=list)  # what ended that nobody had ended

    @property
    def run(self) -> Path:
        return self.stage.run_folder(RUN)

    @property
    def steps(self) -> int:
        """The steps that are logged by now."""
        with suppress(OSError):  # it is away
            return len(times(self.run))
        return 0

    def begin(self, stack: ExitStack) -> None:
        """Begin the run, or go on with it."""
        log = self.stage.place.home / "train.log"
        begun = self.flow is not None
        train = self.stage.shell.started("train", "--json", "--resume", RUN, log=log) if begun else None
        self.lost = False
        self.flow = stack.enter_context(train or self.stage.train("--run", RUN, log=log))


def ahead_by(staleness: int) -> dict[str, str]:
    """The options of a run that is so many versions ahead, and whose completions move between its generators then."""
    return {"staleness": str(staleness), **({"batch.slice_seconds": SLICE_SECONDS} if staleness else {})}


# -- the faults: each returns when it is over


def worker_process(soak: Soak, name: str) -> psutil.Process:
    """The process that works for a machine: the one that its nanny has started. Raises LookupError."""
    with suppress(psutil.NoSuchProcess):
        for worker in workers_of(psutil.Process(soak.stage.joined[name].pid)):
            return worker
    raise LookupError(f"{name} is on its way back")


def kill_worker(name: str, soak: Soak, _: float) -> None:
    worker_process(soak, name).kill()


def stop_worker(name: str, soak: Soak, seconds: float) -> None:
    with stopped(worker_process(soak, name).pid):
        time.sleep(seconds)


def service_process(soak: Soak, name: str) -> psutil.Process:
    try:
        return soak.stage.place.service(name)
    except (OSError, ValueError, psutil.NoSuchProcess) as error:
        raise LookupError(f"{name} is on its way back") from error


def kill_service(name: str, soak: Soak, _: float) -> None:
    service_process(soak, name).kill()


def stop_service(name: str, soak: Soak, seconds: float) -> None:
    with stopped(service_process(soak, name).pid):
        time.sleep(seconds)


def leave(name: str, soak: Soak, seconds: float) -> None:
    """A machine leaves in order, and joins again."""
    soak.stage.leave(name)
    time.sleep(seconds)
    soak.stage.join(name)


def lose_storage(soak: Soak, seconds: float) -> None:
    with away(soak.stage.place.home / "runs"):
        time.sleep(seconds)


def kill_flow(soak: Soak, _: float) -> None:
    soak.flow.send_signal(SIGKILL)
    soak.flow.wait()


Make = Callable[[Soak, float], None]
FAULTS: Mapping[str, Make] = {
    **{f"kill -9 of {name}": partial(kill_worker, name) for name in ("g0", "g1", "t", "v")},
    **{f"SIGSTOP of {name}": partial(stop_worker, name) for name in ("g0", "t", "v")},
    **{f"kill -9 of {name}": partial(kill_service, name) for name in ("scheduler", "prefect", "mlflow")},
    **{f"SIGSTOP of {name}": partial(stop_service, name) for name in ("scheduler", "prefect", "mlflow")},
    "g1 leaves, and joins again": partial(leave, "g1"),
    STORAGE: lose_storage,
    "the flow is killed, and resumed": kill_flow,
}


def planned(seed: int, seconds: float, every: float) -> list[Planned]:
    """A fault each `every` seconds, the last one so long before the end: all kinds in a random order, then anew."""
    draws, left, plan = random.Random(seed), list[str](), list[Planned]()
    while (at := every * (len(plan) + 1)) <= seconds - every:
        if not left:
            left = list(FAULTS)
            draws.shuffle(left)
        plan.append(Planned(at, left.pop(), round(draws.uniform(*AWAY), 1)))
    return plan


# -- the soak


@dataclass(frozen=True)
class Soaked:
    """What came of it."""

    seconds: float
    steps: int
    faults: tuple[Planned, ...]  # that were made
    checks: tuple[Check, ...]
    memory: Mapping[str, Mapping[str, float]]  # of each kind of process, see Footprint
    disk: Mapping[str, Sequence[float]]  # likewise


def soaked(
    home: Path, options: Mapping[str, str], minutes: float, every: float, seed: int, say: Callable[[str], None]
) -> Soaked:
    """Soak for so long, counted from the first step, in this home, which is empty."""
    seconds = 60 * minutes
    if getsignal(SIGINT) is SIG_IGN:  # a job in the background of a shell: what it starts would not hear Ctrl-C
        signal(SIGINT, default_int_handler)
    with staged(home, {**OPTIONS, **options}, STEPS) as stage, ExitStack() as flows:
        stage.client.close()  # it would say of each scheduler that it has lost it
        soak = Soak(stage, say)
        soak.begin(flows)
        say("waiting for the first step")
        until(lambda: soak.steps > 0 or soak.flow.poll() is not None, PATIENCE, every=0.5)
        if soak.flow.poll() is not None:
            raise RuntimeError(f"the run ended before its first step: {last_line(home / 'train.log')}")
        began = time.monotonic()
        made, footprint = [], Footprint(stage.place, soak.run, warm=min(60.0, seconds / 4))
        with footprint.watching():
            for fault in planned(seed, seconds, every):
                _watch(soak, flows, began + fault.at)
                if _make(soak, fault, began):
                    made.append(fault)
            _watch(soak, flows, began + seconds)
        took = time.monotonic() - began
        checks = [*_ended(soak), *footprint.checks(soak.steps), *_steps(soak)]
        checks += [_worked(soak), _gone(soak)]
        return Soaked(took, soak.steps, tuple(made), tuple(checks), footprint.memory(), footprint.disk())


def _make(soak: Soak, fault: Planned, began: float) -> bool:
    """Make the fault; whether there was what it is about."""
    lasts = f" ({fault.seconds:.1f} s)" if fault.what.startswith(("SIGSTOP", "the folder", "g1")) else ""
    at = f"{time.monotonic() - began:6.0f} s, step {soak.steps:4}"
    try:
        FAULTS[fault.what](soak, fault.seconds)
    except LookupError as error:
        soak.say(f"{at}: {fault.what}: not made, {error}")
        return False
    soak.lost = soak.lost or fault.what == STORAGE
    soak.say(f"{at}: {fault.what}{lasts}")
    return True


def _watch(soak: Soak, flows: ExitStack, deadline: float) -> None:
    """Wait; resume the run where it has ended, and note who has ended by himself."""
    while (left := deadline - time.monotonic()) > 0:
        if (code := soak.flow.poll()) is not None:
            why = last_line(soak.stage.place.home / "train.log")
            if code != -SIGKILL and not (soak.lost and "its disk is no longer there" in why):
                soak.died.append(f"the run, with {code}: {why}")
            soak.begin(flows)
        for name, process in soak.stage.joined.items():
            if (code := process.poll()) is not None:
                soak.died.append(f"{name}, with {code}: {last_line(soak.stage.place.home / f'{name}.log')}")
                soak.stage.join(name)
        time.sleep(min(1.0, left))


def last_line(log: Path) -> str:
    """Of what a command has said."""
    return next((line for line in reversed(log.read_text(errors="replace").splitlines()) if line.strip()), "")


def _ended(soak: Soak) -> Iterator[Check]:
    """End the run as Ctrl-C does."""
    soak.flow.send_signal(SIGINT)
    began = time.monotonic()
    with suppress(TimeoutExpired):
        soak.flow.wait(END_SECONDS)
    code = soak.flow.poll()
    yield Check("the run ends when it is asked to", code is not None, f"{time.monotonic() - began:.1f} s, code {code}")
    yield Check("nothing ended by itself", not soak.died, "; ".join(soak.died) or "nothing")


def _steps(soak: Soak) -> Iterator[Check]:
    """Of the steps, on disk and in MLflow."""
    taught = 0
    try:
        used = soak.stage.metrics(soak.run, "groups/used")
        logged, taught = list(used), sum(groups > 0 for groups in used.values())
        wrong = "" if logged == list(range(1, len(logged) + 1)) else f"steps {logged}"
    except (AssertionError, OSError) as error:
        logged, wrong = [], str(error)
    yield Check("every step stands once in metrics.jsonl", not wrong and len(logged) > 1, wrong or f"{len(logged)}")
    yield Check("most steps learn", 2 * taught > len(logged), f"{taught} of {len(logged)}")
    client, of = soak.stage.mlflow(soak.run)
    there = [point.step for point in client.get_metric_history(of.info.run_id, "groups/used")]
    missing = sorted(set(logged) - set(there))
    twice = len(there) - len(set(there))
    passed = not missing and not twice and len(there) == len(logged)
    figure = f"{len(there)}" if passed else f"{len(there)} of {len(logged)}, {twice} twice, missing {missing[:9]}"
    yield Check("every step stands once in MLflow", passed, figure)
    at = times(soak.run)
    longest, step = max(
        ((later - earlier, step) for step, (earlier, later) in enumerate(pairwise(at), 2)), default=(0, 0)
    )
    yield Check(
        f"no step takes longer than {STUCK_SECONDS:.0f} s", longest <= STUCK_SECONDS, f"{longest:.1f} s, step {step}"
    )


def _worked(soak: Soak) -> Check:
    """Whether it was the machines that the faults were of."""
    sessions = read_sessions((soak.run / "timeline.jsonl").read_text())
    by = {span.worker for spans in sessions for span in spans}
    return Check(
        "the machines did the work", by == {f"{name}-{role}" for name, role in MACHINES.items()}, ", ".join(by)
    )


def _gone(soak: Soak) -> Check:
    """Have all processes end as they do when they are asked to."""
    began = time.monotonic()
    for process in soak.stage.joined.values():
        process.send_signal(SIGTERM)
    with suppress(TimeoutExpired):  # it is named below
        for process in soak.stage.joined.values():
            process.wait(END_SECONDS)
    soak.stage.place.rlvf("down")
    with suppress(TimeoutError):
        until(lambda: not soak.stage.place.alive(), END_SECONDS, every=0.2)
    left = [" ".join(process.cmdline())[:80] for process in soak.stage.place.alive()]
    return Check("all processes are gone", not left, "; ".join(left) or f"after {time.monotonic() - began:.1f} s")
