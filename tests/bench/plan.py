"""Steps as the planner predicts them against steps as they are: a local cluster, one generator three times slower.

A thread stops the slow worker's process for two thirds of the time, in slices of some milliseconds, so that all of its
work takes three times as long, whatever it is. Probes measure each call on each worker; then the default placement, one
that trains on the slow worker, and a bad one (it alone generates) are predicted, and run. At last the plan that
improves the bad one is run.

python -m tests.bench.plan [--steps 10] [--json]
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from flows.commands.workplace import in_workplace
from flows.config import TrainConfig
from flows.planner.drawing import graph_of_config
from flows.planner.measured import costs_of, measured_step
from flows.planner.probe import probes, tags_of_workers
from flows.run.workplace import open_workplace
from flows.start.runs import local_folder
from infra.cluster.costs import Places
from infra.cluster.placement import WORKER, offers
from infra.cluster.plan import plan, predicted
from infra.home import rlvf_home
from infra.runs.record import read_record

SLOW, TIMES = "generator-1", 3
SLICE = 0.01  # seconds that the slow worker runs at a time
PLACES: Mapping[str, Places] = {
    "both generate": {"generate": ("generator-0", SLOW), "verify": ("verifier-0",), "train": ("trainer",)},
    "the slow one trains": {"generate": ("generator-0",), "verify": ("verifier-0",), "train": (SLOW,)},
    "the slow one generates": {"generate": (SLOW,), "verify": ("verifier-0",), "train": ("trainer",)},
}


@dataclass(frozen=True)
class Figure:
    """A step of one placement."""

    placement: str
    predicted: float  # seconds
    measured: float

    @property
    def off(self) -> float:
        """By which share the prediction is wrong."""
        return self.predicted / self.measured - 1


def settings(folder: Path) -> TrainConfig:
    """What is trained: a policy that knows nothing and learns nothing, so that all steps are alike. Its completions go
    to the limit, every group has rewards that differ, and none is replaced."""
    verifier = folder / "parity.py"
    verifier.write_text("def reward(problem, completion):\n    return float(len(completion) % 2)\n")
    return TrainConfig.model_validate(
        {
            "verifier": f"{verifier}:reward",
            "optimizer": {"lr": 1e-8},
            "held_out": 0,
            "staleness": 1,
            "batch": {"prompts": 48, "samples": 8, "lease": 4, "oversample": 1},
            "cluster": {"generators": 2, "threads": 1},
            "tracking": {"report": False, "system_metrics": False, "rollouts_every": 0},
            "warm_up": {"steps": 5},
        }
    )


@contextmanager
def slowed(pid: int) -> Iterator[None]:
    """Let a process run a third of the time."""
    over = threading.Event()

    def slow() -> None:
        with suppress(ProcessLookupError):
            while not over.is_set():
                os.kill(pid, signal.SIGSTOP)
                time.sleep((TIMES - 1) * SLICE)
                os.kill(pid, signal.SIGCONT)
                time.sleep(SLICE)

    thread = threading.Thread(target=slow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def trained(config: TrainConfig) -> str:
    """The URI of a run of this configuration, with the slow worker slowed."""
    from flows.train import train

    def work(_: object) -> str:
        with open_workplace(config.cluster, config.placement) as workplace:
            client = workplace.dispatch.client
            pids: dict[str, int] = client.run(os.getpid)
            address = next(offer.address for offer in offers(client) if offer.name == SLOW)
            with slowed(pids[address]):
                return train(config).run

    return in_workplace(config.cluster, config.placement, work)


def placed(config: TrainConfig, places: Places, name: str, steps: int) -> TrainConfig:
    """The configuration with this placement."""
    named = {call: [f"{WORKER}{worker}" for worker in workers] for call, workers in places.items()}
    placement = type(config.placement).model_validate({**named, "evaluate": named["generate"]})
    return config.model_copy(update={"placement": placement, "run": f"{name}-{time.time_ns()}", "steps": steps})


def measure(folder: Path, steps: int, say: Callable[[str], None]) -> list[Figure]:
    """The figures of each placement, the plan's the last."""
    config = settings(folder)
    graph = graph_of_config(config.algorithm)
    found = []
    for probe in probes(config, tags_of_workers(config.cluster), f"probe-{time.time_ns()}"):
        say(f"probe {probe.run}")
        uri = trained(probe)
        found.append(measured_step(read_record(uri, local_folder(uri, rlvf_home())), uri))
    costs = costs_of(graph, found[0], memory={}, size={}, others=found[1:])
    for call in costs.calls:
        say(
            f"{call.name}: {', '.join(f'{worker} {seconds:.2f} s' for worker, seconds in sorted(call.seconds.items()))}"
        )
    best = plan(costs, config.staleness, PLACES["the slow one generates"])
    say(f"the plan: {dict(best.places)}")
    figures = []
    for name, places in {**PLACES, "the plan": best.places}.items():
        uri = trained(placed(config, places, name.replace(" ", "-"), steps))
        step = measured_step(read_record(uri, local_folder(uri, rlvf_home())), uri)
        figures.append(Figure(name, predicted(costs, places, config.staleness).seconds, step.seconds))
        say(f"{name}: predicted {figures[-1].predicted:.2f} s, measured {figures[-1].measured:.2f} s")
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder), given.steps, lambda line: print(line, file=sys.stderr, flush=True))
    if given.json:
        print(json.dumps([{**asdict(each), "off": each.off} for each in figures]))
        return
    for each in figures:
        print(
            f"{each.placement:24s} predicted {each.predicted:6.2f} s  measured {each.measured:6.2f} s  {each.off:+.0%}"
        )
    print(f"the plan is {figures[-2].measured / figures[-1].measured:.2f} times faster than the bad placement")


if __name__ == "__main__":
    main()
