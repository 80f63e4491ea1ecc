"""The faults of `tests/bench/faults.py`: what each does to a run, and to its machines and disk."""

import os
import subprocess
import sysconfig
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from signal import SIGKILL
from typing import Any

from flows.benches.faults import away, stopped
from flows.benches.stage import MACHINES, PATIENCE, Stage
from infra.cluster.placement import offers
from tests.bench.faulty_storage import QUOTA, SLOW, mounted
from tests.bench.faulty_storage import lacks as lacks_fuse
from tests.flows.accidents import kill_in_call
from tests.processes import until

AFTER = 3  # the fault is made when this step is logged
AWAY, LONGER, LONG = 20.0, 30.0, 600.0  # seconds of what comes back by itself
VERSIONS = 10  # that a generator sleeps through
FAULT = "share.fault"  # the file that says what happens to the storage of runs
NOT_THERE = "or its disk is no longer there"  # what is said of the folder of a run
DISK = "96m"  # the small disk, which two checkpoints and two versions of the tiny policy fit on
CLOCKS = {"g0": "+1h", "t": "-1h", "v": "+1h"}  # what they are set to
FAKETIME = "/usr/lib/{}/faketime/libfaketime.so.1"  # of the Debian package libfaketime


@dataclass
class Accident:
    """A run in which a fault is made."""

    stage: Stage
    run: Path
    process: Any
    over: threading.Event = field(default_factory=threading.Event)
    at: float = 0.0  # when it was made
    back: float | None = None  # seconds until what was killed was there again

    def now(self) -> None:
        self.at = time.time()

    def until_back(self, is_back: Callable[[], bool]) -> None:
        until(is_back, PATIENCE, every=0.05)
        self.back = time.time() - self.at


@dataclass(frozen=True)
class Fault:
    """`make` makes it, and what it is about comes back."""

    make: Callable[[Accident], None]
    ends: bool = False  # the run may end by it, and is resumed then
    says: str = ""  # what its last line says then; a run that is killed says nothing
    around: Callable[[Stage], AbstractContextManager[object]] = lambda _: nullcontext()  # as the run finds things
    lacks: Callable[[], str] = lambda: ""  # what this machine lacks for it
    long: bool = False  # it takes ten minutes


def kill_worker(
    name: str, call: str, accident: Accident, *, before: Callable[[Accident], object] = lambda _: None
) -> None:
    """kill -9 while a call is on it; it stands still while `before` is called."""
    stage = accident.stage
    address, _ = stage.worker(name)
    kill_in_call(stage, name, call, accident.run, AFTER, partial(before, accident))
    accident.now()

    def is_back() -> bool:
        with suppress(OSError, TimeoutError):
            return any(each.name == name and each.address != address for each in offers(stage.client, 5.0))
        return False

    accident.until_back(is_back)


def damage_weights(accident: Accident) -> None:
    """A bit of each file of weights that is published."""
    files = [file for file in (accident.run / "weights").glob("v*/*") if file.suffix != ".json"]
    assert files
    for file in files:
        with suppress(FileNotFoundError):  # of a version that was removed just now
            data = bytearray(file.read_bytes())
            data[len(data) // 2] ^= 1
            file.write_bytes(data)


def kill_service(name: str, accident: Accident) -> None:
    """kill -9 of what a supervisor of `rlvf up` keeps alive."""
    accident.now()
    accident.stage.place.service(name).kill()
    if name == "scheduler":
        accident.until_back(accident.stage.is_there)
    else:
        accident.until_back(lambda: accident.stage.answers(name))


def kill_up(accident: Accident) -> None:
    """kill -9 of `rlvf up` itself, which is then given again."""
    accident.now()
    os.kill(int(accident.stage.place.up()["pid"]), SIGKILL)
    accident.stage.place.rlvf("up", "--detach", "--no-with-worker")
    accident.until_back(accident.stage.is_there)


def kill_flow(accident: Accident) -> None:
    accident.now()
    accident.process.kill()


def stop_worker(name: str, seconds: float, accident: Accident) -> None:
    """SIGSTOP, for so long or until the run is over."""
    _, pid = accident.stage.worker(name)
    accident.now()
    with stopped(pid):
        accident.over.wait(seconds)


def stop_service(name: str, accident: Accident) -> None:
    pid = accident.stage.place.service(name).pid
    accident.now()
    with stopped(pid):
        accident.over.wait(AWAY)


def lose_storage(seconds: float, accident: Accident) -> None:
    """The folder of all runs is not there for so long, as a share that is not mounted."""
    accident.now()
    with away(accident.stage.place.home / "runs"):
        accident.over.wait(seconds)


@contextmanager
def share(stage: Stage) -> Iterator[None]:
    """All runs lie on storage to which something can happen."""
    home = stage.place.home
    with mounted(home / "share", home / "runs", home / FAULT, stage.machines):
        yield


def spoil_share(kind: str, accident: Accident) -> None:
    """Something does happen to it for a while."""
    file = accident.stage.place.home / FAULT
    accident.now()
    file.write_text(kind)
    accident.over.wait(AWAY)
    file.unlink()


@contextmanager
def small_disk(stage: Stage) -> Iterator[None]:
    """All runs lie on a file system of their own, a small one."""
    runs = stage.place.home / "runs"
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}", "tmpfs", runs], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", runs], check=True)


def fill_disk(accident: Accident) -> None:
    """The disk that all runs lie on has no space left for a while: not for a checkpoint, nor for a version."""
    rest = accident.stage.place.home / "runs" / ".rest"
    accident.now()
    try:
        with rest.open("wb", buffering=0) as file:
            while time.time() < accident.at + AWAY and not accident.over.wait(0.1):
                with suppress(OSError):  # it is full
                    while file.write(bytes(2**16)):
                        pass
    finally:
        rest.unlink()


def may_mount() -> str:
    return "" if os.geteuid() == 0 else "needs the right to mount a file system"


def sleep_through(name: str, accident: Accident) -> None:
    """SIGSTOP, until so many versions more are there; then it does leases again."""
    stage = accident.stage
    address, pid = stage.worker(name)

    def has() -> set[str]:
        return {str(key) for key in stage.client.processing(workers=[address]).get(address, ())}

    with stopped(pid):
        until(lambda: max(stage.metrics(accident.run, "groups/used")) >= AFTER + VERSIONS, PATIENCE)
        late = has()
    accident.now()
    accident.until_back(lambda: has() - late)


def library() -> Path:
    """That shows a process another time."""
    return Path(FAKETIME.format(sysconfig.get_config_var("MULTIARCH")))


@contextmanager
def settable_clocks(stage: Stage) -> Iterator[None]:
    """Machines join whose clocks can be set."""

    def join_again(env: Mapping[str, str]) -> None:
        for name in CLOCKS:
            stage.leave(name)
            file = stage.place.home / f"{name}.clock"
            file.write_text("+0")
            stage.join(name, **env, FAKETIME_TIMESTAMP_FILE=str(file))

    join_again({"LD_PRELOAD": str(library()), "FAKETIME_CACHE_DURATION": "1", "FAKETIME_DONT_FAKE_MONOTONIC": "1"})
    try:
        yield
    finally:
        join_again({})


def set_clocks(accident: Accident) -> None:
    stage = accident.stage
    accident.now()
    for name, ahead in CLOCKS.items():
        (stage.place.home / f"{name}.clock").write_text(ahead)
    where = [stage.worker(f"{name}-{MACHINES[name]}")[0] for name in CLOCKS]
    until(lambda: all(abs(told - time.time()) > 3500 for told in stage.client.run(time.time, workers=where).values()))


def has_faketime() -> str:
    return "" if library().exists() else "needs libfaketime (on Debian and Ubuntu: apt install faketime)"


FAULTS: Mapping[str, Fault] = {
    "a generator is killed while it samples": Fault(partial(kill_worker, "g0-generator", "generate")),
    "the trainer is killed in an update": Fault(partial(kill_worker, "t-trainer", "train")),
    "the verifier is killed while it judges": Fault(partial(kill_worker, "v-verifier", "verify")),
    "the Dask scheduler is killed": Fault(partial(kill_service, "scheduler")),
    "Prefect's server is killed": Fault(partial(kill_service, "prefect")),
    "MLflow's server is killed": Fault(partial(kill_service, "mlflow")),
    "the flow is killed, and resumed": Fault(kill_flow, ends=True),
    "`rlvf up` is killed, and given again": Fault(kill_up),
    "all weights that are published are damaged, and a generator is killed": Fault(
        partial(kill_worker, "g0-generator", "generate", before=damage_weights)
    ),
    "a generator stops until the end": Fault(partial(stop_worker, "g0-generator", PATIENCE)),
    f"a generator sleeps through {VERSIONS} versions": Fault(partial(sleep_through, "g0-generator")),
    f"the trainer stops for {AWAY:.0f} s": Fault(partial(stop_worker, "t-trainer", AWAY)),
    f"the verifier stops for {AWAY:.0f} s": Fault(partial(stop_worker, "v-verifier", AWAY)),
    f"the Dask scheduler stops for {AWAY:.0f} s": Fault(partial(stop_service, "scheduler")),
    f"Prefect's server stops for {AWAY:.0f} s": Fault(partial(stop_service, "prefect")),
    f"MLflow's server stops for {AWAY:.0f} s": Fault(partial(stop_service, "mlflow")),
    f"the runs' folder is away for {LONGER:.0f} s": Fault(partial(lose_storage, LONGER), ends=True, says=NOT_THERE),
    f"the runs' folder is away for {LONG:.0f} s": Fault(
        partial(lose_storage, LONG), ends=True, says=NOT_THERE, long=True
    ),
    f"the runs' storage is slow for {AWAY:.0f} s": Fault(partial(spoil_share, SLOW), around=share, lacks=lacks_fuse),
    f"the runs' quota is used up for {AWAY:.0f} s": Fault(
        partial(spoil_share, QUOTA),
        ends=True,
        says="the quota of the storage is used up",
        around=share,
        lacks=lacks_fuse,
    ),
    f"the runs' disk is full for {AWAY:.0f} s": Fault(
        fill_disk, ends=True, says="no space left on the disk", around=small_disk, lacks=may_mount
    ),
    "the clocks of three machines are set wrong by an hour": Fault(
        set_clocks, around=settable_clocks, lacks=has_faketime
    ),
}
