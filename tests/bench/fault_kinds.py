"""The faults of `tests/bench/faults.py`, and those of them that happen to processes and clocks."""

import os
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from signal import SIGKILL

import psutil

from flows.benches.faults import stopped
from flows.benches.soak import last_line
from flows.benches.stage import MACHINES, PATIENCE, Stage
from infra.cluster.placement import offers
from tests.bench.accident import AFTER, Accident, Fault
from tests.bench.fault_storage import (
    PASSING,
    damage_checkpoint,
    damage_weights,
    fill_disk,
    lose_storage,
    may_mount,
    share,
    small_disk,
    spoil_share,
)
from tests.bench.faulty_storage import QUOTA, SLOW
from tests.bench.faulty_storage import lacks as lacks_fuse
from tests.flows.accidents import kill_in_call, kill_when
from tests.processes import until

LONGER, LONG = 30.0, 600.0  # seconds that the folder of runs is away
UNSEEN = 40.0  # that a flow, or `rlvf up`, stops: others may take its run over after 30
DROPPED = 90.0  # that a machine sleeps: Dask drops its workers after 60
VERSIONS = 10  # that a generator sleeps through
NOT_THERE = "or its disk is no longer there"  # what is said of the folder of a run
TAKEN = "is in use by"  # and of a run that another process has
CLOCKS = {"g0": "+1h", "t": "-1h", "v": "+1h"}  # what they are set to
SERVICES = {"scheduler": "the Dask scheduler", "prefect": "Prefect's server", "mlflow": "MLflow's server"}
FAKETIME = "/usr/lib/{}/faketime/libfaketime.so.1"  # of the Debian package libfaketime


def kill_worker(
    name: str, call: str, accident: Accident, *, before: Callable[[Accident], object] = lambda _: None
) -> None:
    """kill -9 while a call is on it; it stands still while `before` is called."""
    stage = accident.stage
    address, _ = stage.worker(name)
    kill_in_call(stage, name, call, accident.run, AFTER, partial(before, accident))
    accident.now()
    await_successor(accident, name, address)


def await_successor(accident: Accident, name: str, address: str) -> None:
    """Wait for another worker of this name than the one at this address."""

    def is_back() -> bool:
        with suppress(OSError, TimeoutError):
            return any(each.name == name and each.address != address for each in offers(accident.stage.client, 5.0))
        return False

    accident.until_back(is_back)


def kill_in_checkpoint(accident: Accident) -> None:
    """kill -9 of the trainer while it writes the files of one, before they get their place in `state/`."""
    address, pid = accident.stage.worker("t-trainer")
    kill_when(pid, lambda: any(accident.run.glob(".scratch.*.tmp/optimizer.safetensors")))
    accident.now()
    await_successor(accident, "t-trainer", address)


def works(stage: Stage, name: str) -> bool:
    """Whether a service does what it is for; the scheduler has all workers then."""
    return stage.is_there() if name == "scheduler" else stage.answers(name)


def kill_service(name: str, accident: Accident) -> None:
    """kill -9 of what a supervisor of `rlvf up` keeps alive."""
    accident.now()
    accident.stage.place.service(name).kill()
    accident.until_back(partial(works, accident.stage, name))


def kill_up(accident: Accident) -> None:
    """kill -9 of `rlvf up` itself, which is then given again."""
    accident.now()
    os.kill(int(accident.stage.place.up()["pid"]), SIGKILL)
    accident.stage.place.rlvf("up", "--detach", "--no-with-worker")
    accident.until_back(accident.stage.is_there)


def kill_flow(accident: Accident) -> None:
    accident.now()
    accident.process.kill()


def stop(pid: int, seconds: float, accident: Accident) -> None:
    """SIGSTOP, for so long or until the run is over."""
    accident.now()
    with stopped(pid):
        accident.over.wait(seconds)


def stop_worker(name: str, seconds: float, accident: Accident) -> None:
    stop(accident.stage.worker(name)[1], seconds, accident)


def stop_service(name: str, accident: Accident) -> None:
    stop(accident.stage.place.service(name).pid, PASSING, accident)


def stop_flow(accident: Accident) -> None:
    stop(accident.process.pid, UNSEEN, accident)


def stop_up(accident: Accident) -> None:
    stop(int(accident.stage.place.up()["pid"]), UNSEEN, accident)


def hang_service(name: str, accident: Accident) -> None:
    """SIGSTOP, until `rlvf up` starts it again, which takes two minutes."""
    pid = accident.stage.place.service(name).pid
    accident.now()
    with stopped(pid):
        accident.until_back(partial(works, accident.stage, name))


def close_lid(name: str, accident: Accident) -> None:
    """SIGSTOP of all that runs on a machine, which Dask drops meanwhile; then it works again."""
    top = psutil.Process(accident.stage.joined[name].pid)
    accident.now()
    with ExitStack() as asleep:
        for process in (top, *top.children(recursive=True)):
            asleep.enter_context(stopped(process.pid))
        accident.over.wait(DROPPED)
    accident.until_back(partial(accident.stage.is_there, f"{name}-{MACHINES[name]}"))


def leave_and_join(name: str, accident: Accident) -> None:
    """A machine is asked to leave, by SIGTERM, and joins again."""
    accident.now()
    accident.stage.leave(name)
    accident.stage.join(name)
    accident.until_back(partial(accident.stage.is_there, f"{name}-{MACHINES[name]}"))


def begin_again(accident: Accident) -> None:
    """Another process is to go on with the run, and is refused."""
    log = accident.stage.place.home / f"{accident.run.name}-again.log"
    accident.now()
    with accident.stage.shell.started("train", "--resume", accident.run.name, log=log) as second:
        code = second.wait(PATIENCE)
    if code != 2 or TAKEN not in last_line(log):
        raise RuntimeError(f"the second one ended with {code}, and said last: {last_line(log)}")


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
    "the trainer is killed while it writes a checkpoint": Fault(kill_in_checkpoint),
    "the trainer is killed while it publishes": Fault(partial(kill_worker, "t-trainer", "publish")),
    "the newest checkpoint is damaged, and the trainer is killed": Fault(
        partial(kill_worker, "t-trainer", "train", before=damage_checkpoint)
    ),
    "the verifier is killed while it judges": Fault(partial(kill_worker, "v-verifier", "verify")),
    **{f"{what} is killed": Fault(partial(kill_service, name)) for name, what in SERVICES.items()},
    "the flow is killed, and resumed": Fault(kill_flow, ends=True),
    "`rlvf up` is killed, and given again": Fault(kill_up),
    "all weights that are published are damaged, and a generator is killed": Fault(
        partial(kill_worker, "g0-generator", "generate", before=damage_weights)
    ),
    "a generator stops until the end": Fault(partial(stop_worker, "g0-generator", PATIENCE)),
    f"a generator sleeps through {VERSIONS} versions": Fault(partial(sleep_through, "g0-generator")),
    "a generator's machine leaves, and joins again": Fault(partial(leave_and_join, "g0")),
    f"the trainer stops for {PASSING:.0f} s": Fault(partial(stop_worker, "t-trainer", PASSING)),
    f"the verifier stops for {PASSING:.0f} s": Fault(partial(stop_worker, "v-verifier", PASSING)),
    **{f"{what} stops for {PASSING:.0f} s": Fault(partial(stop_service, name)) for name, what in SERVICES.items()},
    **{f"{what} hangs": Fault(partial(hang_service, name), long=True) for name, what in SERVICES.items()},
    f"the flow stops for {UNSEEN:.0f} s": Fault(stop_flow),
    f"`rlvf up` stops for {UNSEEN:.0f} s": Fault(stop_up),
    f"the trainer's machine sleeps for {DROPPED:.0f} s": Fault(partial(close_lid, "t"), long=True),
    "another process goes on with the run": Fault(begin_again),
    f"the runs' folder is away for {LONGER:.0f} s": Fault(partial(lose_storage, LONGER), ends=True, says=NOT_THERE),
    f"the runs' folder is away for {LONG:.0f} s": Fault(
        partial(lose_storage, LONG), ends=True, says=NOT_THERE, long=True
    ),
    f"the runs' storage is slow for {PASSING:.0f} s": Fault(partial(spoil_share, SLOW), around=share, lacks=lacks_fuse),
    f"the runs' quota is used up for {PASSING:.0f} s": Fault(
        partial(spoil_share, QUOTA),
        ends=True,
        says="the quota of the storage is used up",
        around=share,
        lacks=lacks_fuse,
    ),
    f"the runs' disk is full for {PASSING:.0f} s": Fault(
        fill_disk, ends=True, says="no space left on the disk", around=small_disk, lacks=may_mount
    ),
    "the clocks of three machines are set wrong by an hour": Fault(
        set_clocks, around=settable_clocks, lacks=has_faketime
    ),
}
