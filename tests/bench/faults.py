"""What every fault costs a run, with real processes and real signals.

    python -m tests.bench.faults [--only NAME ...] [--times 1] [--steps 12] [--policy FOLDER] [--json]

In a home of its own: `rlvf up`, four machines (`rlvf worker`: two generators, a trainer, a verifier) and, for each
fault, a run of `rlvf train` at staleness 0, in which it is made once. A table in Markdown on stdout, of each fault:

- lost: seconds by which the longest step since the fault was longer than the median of an undisturbed run;
- back: seconds until what was killed answers again, or offers its work again;
- whether the run went on by itself or was resumed, every step stands once in `metrics.jsonl` and in MLflow, and the
  weights at the end are bit for bit those of the undisturbed run. One of these that is not so ends the command with 1.

With --times, medians and the worst of so many runs. --policy takes one that is warm, such as
$RLVF_HOME/warmup/...; the tiny policy is warmed up otherwise, which takes minutes.
"""

import argparse
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from signal import SIGKILL
from statistics import median
from typing import Any

from flows.benches.faults import away, stopped
from flows.benches.stage import OPTIONS, PATIENCE, Stage, staged, times
from infra.cluster.placement import offers
from tests.flows.accidents import check_steps, kill_in_call
from tests.processes import until

AFTER = 3  # the fault is made when this step is logged
AWAY = 20.0  # seconds of what comes back by itself


def digest(run: Path, steps: int) -> str:
    """Of the weights as the trainer holds them."""
    return sha256((run / "state" / str(steps) / "model.safetensors").read_bytes()).hexdigest()


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


Make = Callable[[Accident], None]  # makes a fault, and what it is about comes back


def kill_worker(name: str, call: str, accident: Accident) -> None:
    """kill -9 while a call is on it."""
    stage = accident.stage
    address, _ = stage.worker(name)
    kill_in_call(stage, name, call, accident.run, AFTER)
    accident.now()

    def is_back() -> bool:
        with suppress(OSError, TimeoutError):
            return any(each.name == name and each.address != address for each in offers(stage.client, 5.0))
        return False

    accident.until_back(is_back)


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


def lose_storage(accident: Accident) -> None:
    """The folder of all runs is not there for a while, as a share that is not mounted."""
    accident.now()
    with away(accident.stage.place.home / "runs"):
        accident.over.wait(AWAY)


FAULTS: Mapping[str, Make] = {
    "a generator is killed while it samples": partial(kill_worker, "g0-generator", "generate"),
    "the trainer is killed in an update": partial(kill_worker, "t-trainer", "train"),
    "the verifier is killed while it judges": partial(kill_worker, "v-verifier", "verify"),
    "the Dask scheduler is killed": partial(kill_service, "scheduler"),
    "Prefect's server is killed": partial(kill_service, "prefect"),
    "MLflow's server is killed": partial(kill_service, "mlflow"),
    "the flow is killed, and resumed": kill_flow,
    "`rlvf up` is killed, and given again": kill_up,
    "a generator stops until the end": partial(stop_worker, "g0-generator", PATIENCE),
    f"the trainer stops for {AWAY:.0f} s": partial(stop_worker, "t-trainer", AWAY),
    f"the verifier stops for {AWAY:.0f} s": partial(stop_worker, "v-verifier", AWAY),
    f"the Dask scheduler stops for {AWAY:.0f} s": partial(stop_service, "scheduler"),
    f"Prefect's server stops for {AWAY:.0f} s": partial(stop_service, "prefect"),
    f"MLflow's server stops for {AWAY:.0f} s": partial(stop_service, "mlflow"),
    f"the runs' folder is away for {AWAY:.0f} s": lose_storage,
}


@dataclass(frozen=True)
class Found:
    """What came of one run."""

    lost: float
    back: float | None
    resumed: bool
    faults: tuple[str, ...]  # what is not as it was without the fault


def trained(stage: Stage, name: str, make: Make | None, usual: float, weights: str) -> Found:
    """A run with this fault; `usual` seconds a step and these weights are those of one without."""
    stage.settle()
    run = stage.run_folder(name)
    faults = []
    with ThreadPoolExecutor(1) as pool, stage.train("--run", name) as process:
        accident = Accident(stage, run, process)
        making = None if make is None else pool.submit(make_after, make, accident)
        _, said = process.communicate(timeout=PATIENCE)
        resumed = make is kill_flow or (make is lose_storage and process.returncode != 0)  # it was thought removed
        if resumed:
            if making is not None:
                making.exception(PATIENCE)  # once the folder is back
            with stage.shell.started("train", "--json", "--resume", name) as process:
                _, said = process.communicate(timeout=PATIENCE)
        accident.over.set()
        if making is not None and (error := making.exception(PATIENCE)) is not None:
            faults.append(f"it could not be made, or did not come back: {error}")
    if process.returncode != 0:
        faults.append(f"exit code {process.returncode}: {said.strip().splitlines()[-1]}")
    try:
        check_steps(stage, run, stage.steps)
    except (AssertionError, OSError, KeyError) as error:
        faults.append(f"not every step was made and logged once: {error}")
    if weights and not faults and digest(run, stage.steps) != weights:
        faults.append("other weights")
    at = times(run)
    first = sum(time <= accident.at for time in at)
    gaps = [later - earlier for earlier, later in pairwise(at[max(0, first - 1) :])]
    return Found(max(gaps, default=0) - usual, accident.back, resumed, tuple(faults))


def make_after(make: Make, accident: Accident) -> None:
    """Make the fault, once the run has logged step AFTER."""
    stage, process = accident.stage, accident.process
    until(lambda: AFTER in stage.metrics(accident.run, "groups/used") or process.poll() is not None, PATIENCE)
    make(accident)


def row(name: str, found: Sequence[Found]) -> str:
    """A line of the table."""

    def seconds(values: Sequence[float]) -> str:
        if not values:
            return "–"
        worst = f" (worst {max(values):.1f})" if len(values) > 1 else ""
        return f"{max(0.0, median(values)):.1f}{worst}"

    back = [each.back for each in found if each.back is not None]
    how = "resumed" if found[0].resumed else "goes on"
    bad = sorted({fault for each in found for fault in each.faults})
    cells = [name, how, seconds([each.lost for each in found]), seconds(back), "; ".join(bad) or "the same"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="faults in whose name one of these words is")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--policy", default="tiny")
    parser.add_argument("--json", action="store_true", help="one JSON object with the figures of each run")
    given = parser.parse_args()
    wanted = {name: make for name, make in FAULTS.items() if not given.only or any(word in name for word in given.only)}
    if not wanted:
        sys.exit(f"no fault of that name; there are: {'; '.join(FAULTS)}")
    by_name: dict[str, list[Found]] = {name: [] for name in wanted}
    with tempfile.TemporaryDirectory(prefix="rlvf-faults-") as folder:
        os.environ["RLVF_HOME"] = folder
        with staged(Path(folder), {**OPTIONS, "policy": given.policy}, given.steps) as stage:
            if (undisturbed := trained(stage, "undisturbed", None, 0.0, "")).faults:
                sys.exit(f"the run without a fault: {'; '.join(undisturbed.faults)}")
            at = times(stage.run_folder("undisturbed"))
            usual = median(later - earlier for earlier, later in pairwise(at))
            weights = digest(stage.run_folder("undisturbed"), given.steps)
            print(f"undisturbed: {usual:.1f} s a step", file=sys.stderr, flush=True)
            for turn in range(given.times):
                for number, (name, make) in enumerate(wanted.items()):
                    found = trained(stage, f"fault-{number}-{turn}", make, usual, weights)
                    by_name[name].append(found)
                    print(row(name, [found]), file=sys.stderr, flush=True)
            stage.place.rlvf("down")
    if given.json:
        print(json.dumps({name: [vars(each) for each in of] for name, of in by_name.items()}))
    else:
        print(
            "| what breaks | the run | lost, s | back after, s | steps and weights |\n| --- | --- | --- | --- | --- |"
        )
        print("\n".join(row(name, of) for name, of in by_name.items()))
    sys.exit(any(each.faults for of in by_name.values() for each in of))


if __name__ == "__main__":
    main()
