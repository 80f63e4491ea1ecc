"""Steps of PPO as the planner predicts them against steps as they are: a local cluster, one generator slowed.

A thread stops the slow worker's process for twice as long as it has computed, in slices of some milliseconds, so that
all that it computes takes three times as long, whatever it is. Probes measure each call on each worker; then three
placements are predicted and run, the last of them a bad one, and the plan that improves that. All run in one cluster,
in turns, so that a load of the machine that comes and goes meets all of them; figures are medians over the turns.

`predicted` is what `rlvf plan` would say. `same load` is the same with the load by other programs during those runs,
estimated from their own waits for a core: no forecast, but it shows how much of an error is a load that has changed. On
a quiet machine with two cores it takes some 9 minutes.

python -m tests.bench.plan [--steps 6] [--turns 2] [--json]
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median

from flows.commands.workplace import in_workplace
from flows.config import TrainConfig
from flows.planner.calls import graph_of_config, planned_calls
from flows.planner.measured import MeasuredStep, costs_of, measured_step
from flows.planner.probe import probes, tags_of_workers
from flows.run.workplace import Workplace, open_workplace, present
from flows.start.runs import local_folder
from infra.cluster.placement import WORKER, PlacementConfig, offers
from infra.dispatch.dispatch import Dispatch
from infra.home import rlvf_home
from infra.planning.costs import Costs, Places, listed
from infra.planning.plan import plan, predicted
from infra.runs.record import Record, read_record

FAST, SLOW, TIMES = "generator-0", "generator-1", 3
SLICE = 0.01  # seconds between two looks at what the slow worker has computed
CALLS = ("generate", "verify", "reference", "value", "train", "train_critic")
BAD = "the slow one trains a critic"


def placing(generate: tuple[str, ...], reference: tuple[str, ...], value: str, train: str, critic: str) -> Places:
    """The workers of each of CALLS."""
    return dict(zip(CALLS, (generate, ("verifier-0",), reference, (value,), (train,), (critic,)), strict=True))


PLACES: Mapping[str, Places] = {
    "both generate": placing((FAST, SLOW), (FAST, SLOW), "trainer", "trainer", "trainer"),
    "the slow one generates": placing((SLOW,), (SLOW,), "trainer", "trainer", "trainer"),
    BAD: placing((FAST,), (FAST,), SLOW, "trainer", SLOW),
}
PLANNED = "the plan for that"


@dataclass(frozen=True)
class Figure:
    """A step of one placement, in seconds."""

    placement: str
    predicted: float
    same_load: float  # predicted with the load by other programs that there was in its runs
    measured: float

    @property
    def off(self) -> float:
        """By which share the prediction is wrong."""
        return self.predicted / self.measured - 1

    @property
    def off_at_same_load(self) -> float:
        """By which share it would have been, had the load been known."""
        return self.same_load / self.measured - 1


def settings(folder: Path) -> TrainConfig:
    """What is trained: a policy that knows nothing and learns nothing, so that all steps are alike. Its completions go
    to the limit, every group has rewards that differ, and none is replaced."""
    verifier = folder / "parity.py"
    verifier.write_text("def reward(problem, completion):\n    return float(len(completion) % 2)\n")
    return TrainConfig.model_validate(
        {
            "algorithm": {"name": "ppo", "kl": {"coefficient": 0.02}},
            "verifier": f"{verifier}:reward",
            "optimizer": {"lr": 1e-8},
            "held_out": 0,
            "staleness": 1,
            "batch": {"prompts": 24, "samples": 8, "lease": 2, "oversample": 1},
            "cluster": {"generators": 2, "threads": 1},
            "tracking": {"report": False, "system_metrics": False, "rollouts_every": 0},
            "warm_up": {"steps": 5},
        }
    )


def computed(pid: int) -> float:
    """Seconds of cores that a process has used, all of its threads, by its clock (Linux; clock_getcpuclockid(3))."""
    return time.clock_gettime((~pid << 3) | 2)


@contextmanager
def slowed(pid: int, times: float = TIMES) -> Iterator[None]:
    """Stop a process for `times` - 1 times as long as it has computed, again and again: what it computes takes so many
    times as long, what it waits for does not, be that a message or a core that it shares."""
    over = threading.Event()

    def slow() -> None:
        with suppress(OSError):
            began = computed(pid)
            stopped = 0.0  # seconds so far
            while not over.wait(SLICE):
                owed = (times - 1) * (computed(pid) - began) - stopped
                if owed > 0:
                    os.kill(pid, signal.SIGSTOP)
                    at = time.perf_counter()
                    time.sleep(owed)
                    os.kill(pid, signal.SIGCONT)
                    stopped += time.perf_counter() - at

    thread = threading.Thread(target=slow, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        with suppress(OSError):
            os.kill(pid, signal.SIGCONT)


def trained(workplace: Workplace, config: TrainConfig) -> MeasuredStep:
    """The step of a run of this configuration, in the workplace's cluster."""
    return measured_step(*recorded(workplace, config))


def recorded(workplace: Workplace, config: TrainConfig) -> tuple[Record, str]:
    """The record of such a run, and its URI."""
    from flows.train import train

    dispatch = Dispatch(workplace.dispatch.client, config.placement, workplace.display.say)
    with dispatch, present(replace(workplace, dispatch=dispatch)):
        uri = train(config).run
    return read_record(uri, local_folder(uri, rlvf_home())), uri


def placed(config: TrainConfig, places: Places, name: str, steps: int) -> TrainConfig:
    """The configuration with this placement."""
    named = {call: [f"{WORKER}{worker}" for worker in workers] for call, workers in places.items()}
    placement = PlacementConfig.model_validate({**named, "evaluate": named["generate"]})
    return config.model_copy(
        update={"placement": placement, "run": f"{name.replace(' ', '-')}-{time.time_ns()}", "steps": steps}
    )


def measure(
    workplace: Workplace, config: TrainConfig, steps: int, turns: int, say: Callable[[str], None]
) -> list[Figure]:
    """The figures of each placement, the plan's the last."""
    probed: list[MeasuredStep] = []
    runs: dict[str, list[MeasuredStep]] = defaultdict(list)
    waiting = list(probes(config, tags_of_workers(config.cluster), f"probe-{time.time_ns()}"))
    places = dict(PLACES)
    for turn in range(turns):
        for name in [*PLACES, PLANNED]:
            if waiting and turn == 0:  # as many as placements: before each of them one
                probed.append(trained(workplace, waiting.pop(0)))
            if name == PLANNED:
                places[name] = plan(costs(config, probed), config.staleness, PLACES[BAD]).places
                say(f"{name}: {'; '.join(f'{call} {listed(by)}' for call, by in places[name].items())}")
            runs[name].append(trained(workplace, placed(config, places[name], name, steps)))
            say(f"turn {turn + 1}, {name}: {runs[name][-1].seconds:.2f} s")
    found = costs(config, probed)
    for call in found.calls:
        each = (
            f"{worker} {call.fixed.get(worker, 0.0):.2f} + {call.seconds[worker]:.2f} s x {call.wants(worker):.2f}"
            for worker in sorted(call.seconds)
        )
        say(f"{call.name}: {', '.join(each)}")
    say(f"other programs want {list(found.others.values())} of {list(found.cores.values())} cores in probes")
    return [figure(name, found, places[name], config.staleness, runs[name]) for name in places]


def costs(config: TrainConfig, probed: list[MeasuredStep]) -> Costs:
    """Those that the probes have measured."""
    calls = planned_calls(graph_of_config(config.algorithm))
    return costs_of(calls, probed[0], memory={}, size={}, others=probed[1:], cut=config.lease.seconds > 0)


def figure(name: str, known: Costs, places: Places, staleness: int, runs: list[MeasuredStep]) -> Figure:
    """What was predicted of a placement, and measured in its runs."""
    load = {machine: median(run.others[machine] for run in runs) for machine in known.others}
    return Figure(
        name,
        predicted(known, places, staleness).seconds,
        predicted(replace(known, others=load), places, staleness).seconds,
        median(run.seconds for run in runs),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        config = settings(Path(folder))

        def work(_: object) -> list[Figure]:
            with open_workplace(config.cluster, config.placement) as workplace:
                client = workplace.dispatch.client
                pids: dict[str, int] = client.run(os.getpid)
                address = next(offer.address for offer in offers(client) if offer.name == SLOW)
                with slowed(pids[address]):
                    return measure(
                        workplace,
                        config,
                        given.steps,
                        given.turns,
                        lambda line: print(line, file=sys.stderr, flush=True),
                    )

        figures = in_workplace(config.cluster, config.placement, work)
    if given.json:
        also = [{"off": each.off, "off_at_same_load": each.off_at_same_load} for each in figures]
        print(json.dumps([{**asdict(each), **more} for each, more in zip(figures, also, strict=True)]))
        return
    for each in figures:
        known = f"same load {each.same_load:6.2f} s {each.off_at_same_load:+5.0%}"
        print(
            f"{each.placement:30s} predicted {each.predicted:6.2f} s {each.off:+5.0%}   {known}   "
            f"measured {each.measured:6.2f} s"
        )
    print(f"the plan is {figures[-2].measured / figures[-1].measured:.2f} times faster than the bad placement")


if __name__ == "__main__":
    main()
