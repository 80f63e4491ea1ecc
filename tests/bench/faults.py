"""What every fault costs a run, with real processes and real signals.

    python -m tests.bench.faults [--only NAME ...] [--long] [--times 1] [--steps 16] [--policy FOLDER] [--json]

In a home of its own: `rlvf up`, four machines (`rlvf worker`: two generators, a trainer, a verifier) and, for each
fault, a run of `rlvf train` at staleness 0, in which it is made once. A table in Markdown on stdout, of each fault:

- lost: seconds by which the longest step since the fault was longer than the median of an undisturbed run;
- back: seconds until what was killed answers again, or offers its work again;
- whether the run went on by itself or was resumed, every step stands once in `metrics.jsonl` and in MLflow, and the
  weights at the end are bit for bit those of the undisturbed run; and, where it ended, whether it said why. One of
  these that is not so ends the command with 1, and leaves the home as it is.

With --times, medians and the worst of so many runs. --policy takes one that is warm, such as
$RLVF_HOME/warmup/...; the tiny policy is warmed up otherwise, which takes minutes.
"""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from signal import SIGKILL
from statistics import median

from flows.benches.place import fresh_home
from flows.benches.soak import last_line
from flows.benches.stage import OPTIONS, PATIENCE, Stage, staged, times
from tests.bench.accident import AFTER, Accident, Fault
from tests.bench.fault_kinds import FAULTS, LONG, VERSIONS
from tests.flows.accidents import check_steps
from tests.processes import until


def digest(run: Path, steps: int) -> str:
    """Of the weights as the trainer holds them."""
    return sha256((run / "state" / str(steps) / "model.safetensors").read_bytes()).hexdigest()


@dataclass(frozen=True)
class Found:
    """What came of one run."""

    lost: float
    back: float | None
    resumed: bool
    faults: tuple[str, ...]  # what is not as it was without the fault


def trained(stage: Stage, name: str, fault: Fault | None, usual: float, weights: str) -> Found:
    """A run with this fault; `usual` seconds a step and these weights are those of one without."""
    with nullcontext() if fault is None else fault.around(stage):
        stage.settle()
        return _trained(stage, name, fault, usual, weights)


def _trained(stage: Stage, name: str, fault: Fault | None, usual: float, weights: str) -> Found:
    run = stage.run_folder(name)
    log, faults = stage.place.home / f"{name}.log", []
    with ThreadPoolExecutor(1) as pool, stage.train("--run", name, log=log) as process:
        accident = Accident(stage, run, process)
        making = None if fault is None else pool.submit(make_after, fault, accident)
        process.wait(LONG + PATIENCE)
        resumed = fault is not None and fault.ends and process.returncode != 0
        if fault is not None and resumed:
            print(f"it ended, and said last: {last_line(log)}", file=sys.stderr, flush=True)
            faults += wrong_end(fault, process.returncode, last_line(log))
            assert making is not None
            making.exception(PATIENCE)  # once what it lacked is back
            with stage.shell.started("train", "--json", "--resume", name, log=log) as process:
                process.wait(PATIENCE)
        accident.over.set()
        if making is not None and (error := making.exception(PATIENCE)) is not None:
            faults.append(f"it could not be made, or did not come back: {error}")
    if process.returncode != 0:
        faults.append(f"exit code {process.returncode}: {last_line(log)}")
    try:
        check_steps(stage, run, stage.steps)
        if weights and digest(run, stage.steps) != weights:
            faults.append("other weights")
    except (AssertionError, OSError, KeyError) as error:
        faults.append(f"not every step was made and logged once: {error}")
    at = times(run)
    first = sum(time <= accident.at for time in at)
    gaps = [later - earlier for earlier, later in pairwise(at[max(0, first - 1) :])]
    return Found(max(gaps, default=0) - usual, accident.back, resumed, tuple(faults))


def wrong_end(fault: Fault, code: int, line: str) -> list[str]:
    """What is wrong with a run that ended by this fault with this last line: it says why, unless it was killed."""
    is_right = fault.says in line if fault.says else code == -SIGKILL
    return [] if is_right else [f"it ended with {code}, and said last: {line}"]


def make_after(fault: Fault, accident: Accident) -> None:
    """Make the fault, once the run has logged step AFTER."""
    stage, process = accident.stage, accident.process
    until(lambda: AFTER in stage.metrics(accident.run, "groups/used") or process.poll() is not None, PATIENCE)
    fault.make(accident)


def row(name: str, found: Sequence[Found]) -> str:
    """A line of the table."""

    def seconds(values: Sequence[float]) -> str:
        if not values:
            return "–"
        worst = f" (worst {max(values):.1f})" if len(values) > 1 else ""
        return f"{max(0.0, median(values)):.1f}{worst}"

    back = [each.back for each in found if each.back is not None]
    resumed = sum(each.resumed for each in found)
    how = {0: "goes on", len(found): "resumed"}.get(resumed, f"{resumed} of {len(found)} resumed")
    bad = sorted({fault for each in found for fault in each.faults})
    cells = [name, how, seconds([each.lost for each in found]), seconds(back), "; ".join(bad) or "the same"]
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", default=[], help="faults in whose name one of these words is")
    parser.add_argument("--long", action="store_true", help="those that take minutes, too, in runs that do (--steps)")
    parser.add_argument("--times", type=int, default=1)
    parser.add_argument("--steps", type=int, default=16)
    parser.add_argument("--policy", default="tiny")
    parser.add_argument("--problems", default="arithmetic")
    parser.add_argument("--json", action="store_true", help="one JSON object with the figures of each run")
    given = parser.parse_args()
    named = [
        name
        for name, fault in FAULTS.items()
        if (given.long or not fault.long) and (not given.only or any(word in name for word in given.only))
    ]
    if not named:
        sys.exit(f"no fault of that name; there are: {'; '.join(FAULTS)}")
    if given.steps < AFTER + VERSIONS + 1:
        sys.exit(f"a generator sleeps through {VERSIONS} versions; give --steps {AFTER + VERSIONS + 1} at least")
    for name in named:
        if lacks := FAULTS[name].lacks():
            print(f"not made: {name}: {lacks}", file=sys.stderr)
    wanted = {name: FAULTS[name] for name in named if not FAULTS[name].lacks()}
    by_name: dict[str, list[Found]] = {name: [] for name in wanted}
    with fresh_home("rlvf-faults-") as home:
        os.environ["RLVF_HOME"] = str(home.folder)
        options = {**OPTIONS, "staleness": "0", "policy": given.policy, "problems": given.problems}
        with staged(home.folder, options, given.steps) as stage:
            if (undisturbed := trained(stage, "undisturbed", None, 0.0, "")).faults:
                sys.exit(f"the run without a fault: {'; '.join(undisturbed.faults)}")
            at = times(stage.run_folder("undisturbed"))
            usual = median(later - earlier for earlier, later in pairwise(at))
            weights = digest(stage.run_folder("undisturbed"), given.steps)
            print(f"undisturbed: {usual:.1f} s a step", file=sys.stderr, flush=True)
            for turn in range(given.times):
                for number, (name, fault) in enumerate(wanted.items()):
                    found = trained(stage, f"fault-{number}-{turn}", fault, usual, weights)
                    by_name[name].append(found)
                    home.failed = home.failed or bool(found.faults)
                    print(row(name, [found]), file=sys.stderr, flush=True)
            stage.client.close()  # it would say that it has lost the scheduler
            stage.place.rlvf("down")
    if given.json:
        print(json.dumps({name: [vars(each) for each in of] for name, of in by_name.items()}))
    else:
        print(
            "| what breaks | the run | lost, s | back after, s | steps and weights |\n| --- | --- | --- | --- | --- |"
        )
        print("\n".join(row(name, of) for name, of in by_name.items()))
    sys.exit(home.failed)


if __name__ == "__main__":
    main()
