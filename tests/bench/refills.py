"""How long generators idle while groups that teach nothing are replaced: with waves, each of which waits for the
verdicts on all leases of the one before it, and as `tasks.batch.refills` draws them.

Runs in a local cluster whose two generators are slowed (`tests.bench.plan`), one of them three times as much as the
other, in turns: the same seed, the same policy all along, the same batches. `idle` is the share of a step's seconds in
which the generators did not sample, `batch` the seconds in which the flow waited for the batch: means over the steps
after the first and over the turns. At staleness 0 both ways must make the same completions, or this ends with 1.

python -m tests.bench.refills [--policy FOLDER] [--steps 8] [--turns 2] [--leases 16 4] [--staleness 0 1]

The same without a cluster, for a machine that others use too: workers and trainer are simulated, a group takes the
fastest one a second, an update the trainer UPDATE of them, and verdicts are drawn at random.

python -m tests.bench.refills --simulated [--steps 200] [--leases 16 4] [--staleness 0 1]
"""

import argparse
import heapq
import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any
from unittest.mock import patch

import numpy as np

from flows.commands.workplace import in_workplace
from flows.config import TrainConfig
from flows.run.workplace import Workplace, open_workplace
from infra.cluster.placement import offers
from infra.runs.metric_log import read_metrics
from infra.runs.rollouts import read_rollouts
from tasks.batch.refills import Refills
from tests.bench.plan import recorded, slowed

SLOW: Mapping[str, float] = {"generator-0": 3.0, "generator-1": 9.0}  # times as long as it takes
WAYS = ("waves", "now")
PACES = (1.0, 3.0), (1.0, 1.0, 2.0, 4.0)  # seconds for a group of each simulated generator
RATES = 0.5, 0.8  # of groups that teach something
PROMPTS, TIMES, UPDATE = 32, 2, 15.0  # of a simulated batch; how often as many at most; seconds of an update
NAMES: Mapping[str, str] = {
    "step": "perf/step_seconds",
    "batch": "perf/rollouts_seconds",
    "busy": "perf/generator_busy",
    "groups": "groups/generated",
    "without": "groups/zero_variance",
}


def settings(policy: str, steps: int) -> TrainConfig:
    """What is trained: a policy that does not change, so that all runs have the same batches."""
    return TrainConfig.model_validate(
        {
            "policy": {"model": policy},
            "optimizer": {"lr": 1e-12},
            "steps": steps,
            "held_out": 0,
            "audit": {"share": 0},
            "batch": {"prompts": 32, "samples": 8},
            "cluster": {"generators": 2, "threads": 1},
            "tracking": {"report": False, "system_metrics": False},
        }
    )


@contextmanager
def drawn(way: str) -> Iterator[None]:
    """Have groups replaced in this way."""
    draw = Refills.draw

    def in_waves(self: Refills, *, broken: bool) -> list[range]:
        return draw(self, broken=broken) if self.all_judged else []

    with patch.object(Refills, "draw", in_waves if way == "waves" else draw):
        yield


def measured(workplace: Workplace, config: TrainConfig, way: str) -> tuple[dict[str, float], list[dict[str, Any]]]:
    """The figures of a run, and its completions."""
    client = workplace.dispatch.client
    pids: dict[str, int] = client.run(os.getpid)
    with ExitStack() as stack:
        stack.enter_context(drawn(way))
        for offer in offers(client):
            if offer.name in SLOW:
                stack.enter_context(slowed(pids[offer.address], SLOW[offer.name]))
        _, uri = recorded(workplace, config.model_copy(update={"run": f"refills-{time.time_ns()}"}))
    lines = [line for line in read_metrics(Path(uri) / "metrics.jsonl") if line.step > 1]
    figures = {
        what: fmean(line.metrics[name] for line in lines if name in line.metrics) for what, name in NAMES.items()
    }
    rows = [{**row, "worker": ""} for step in range(1, config.steps + 1) for row in read_rollouts(uri, step)]
    return figures, rows


def table(workplace: Workplace, config: TrainConfig, given: argparse.Namespace) -> bool:
    """Print the table; whether both ways made the same batches where they must."""
    same = True
    print("| lease | staleness | groups | replaced | step: waves | now | batch: waves | now | idle: waves | now |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for lease in given.leases:
        for staleness in given.staleness:
            batch = config.batch.model_copy(update={"lease": lease})
            asked = config.model_copy(update={"batch": batch, "staleness": staleness})
            found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
            for turn in range(given.turns):
                made = []
                for way in WAYS if turn % 2 == 0 else WAYS[::-1]:
                    figures, rows = measured(workplace, asked, way)
                    found[way].append(figures)
                    made.append(rows)
                    print(lease, staleness, way, figures, file=sys.stderr, flush=True)
                if staleness == 0 and made[0] != made[1]:
                    same = False
                    print("the two ways made other completions", file=sys.stderr, flush=True)
            waves, now = ({what: fmean(each[what] for each in found[way]) for what in NAMES} for way in WAYS)
            cells = [f"{lease}", f"{staleness}", f"{now['groups']:.0f}", f"{now['without']:.0f}"]
            cells += [f"{each[what]:.2f} s" for what in ("step", "batch") for each in (waves, now)]
            cells += [f"{1 - each['busy']:.0%}" for each in (waves, now)]
            print(f"| {' | '.join(cells)} |", flush=True)
    return same


@dataclass
class Simulated:
    """Steps on generators of these paces, and a trainer that takes the batches in order."""

    paces: tuple[float, ...]
    lease: int
    rate: float
    staleness: int
    steps: int

    batches: list[Refills] = field(default_factory=list)
    idle: list[int] = field(default_factory=list)  # the one that is free longest first
    waiting: list[tuple[int, int, range]] = field(default_factory=list)  # a heap: step, first group, lease
    busy: float = 0.0  # seconds of all generators
    now: float = 0.0

    def run(self) -> tuple[float, float]:
        """Seconds of a step, and the share of them in which generators idle."""
        self.idle = list(range(len(self.paces)))
        coming: list[tuple[float, int, int, range]] = []  # a heap: when, worker (-1: the trainer), step, lease
        trained, training = 0, False
        while trained < self.steps:
            while len(self.batches) <= min(trained + self.staleness, self.steps - 1):
                self.batches.append(Refills(PROMPTS, TIMES * PROMPTS, self.lease))
                self.draw(len(self.batches) - 1, broken=True)
            while self.waiting and self.idle:
                step, _, lease = heapq.heappop(self.waiting)
                worker = self.idle.pop(0)
                takes = len(lease) * self.paces[worker]
                self.busy += takes
                heapq.heappush(coming, (self.now + takes, worker, step, lease))
            if not training and self.batches[trained].all_judged:
                training = True
                heapq.heappush(coming, (self.now + UPDATE, -1, trained, range(0)))
            self.now, worker, step, lease = heapq.heappop(coming)
            if worker < 0:
                trained, training = trained + 1, False
                continue
            self.idle.append(worker)
            teaching = [Random(f"{step} {group}").random() < self.rate for group in lease]
            self.batches[step].judged(lease.start, np.array(teaching))
            self.draw(step, broken=False)
        return self.now / self.steps, 1 - self.busy / (self.now * len(self.paces))

    def draw(self, step: int, *, broken: bool) -> None:
        for lease in self.batches[step].draw(broken=broken):
            heapq.heappush(self.waiting, (step, lease.start, lease))


def simulated(given: argparse.Namespace) -> None:
    """Print the table of simulated steps."""
    print("| seconds for a group | teach | lease | staleness | step: waves | now | idle: waves | now |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    for paces in PACES:
        for rate in RATES:
            for lease in given.leases:
                for staleness in given.staleness:
                    found = []
                    for way in WAYS:
                        with drawn(way):
                            found.append(Simulated(paces, lease, rate, staleness, given.steps).run())
                    cells = [", ".join(f"{pace:g}" for pace in paces), f"{rate:.0%}", f"{lease}", f"{staleness}"]
                    cells += [f"{seconds:.1f} s" for seconds, _ in found] + [f"{idle:.0%}" for _, idle in found]
                    print(f"| {' | '.join(cells)} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", default="tiny")
    parser.add_argument("--simulated", action="store_true")
    parser.add_argument("--steps", type=int)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--leases", type=int, nargs="+", default=[16, 4])
    parser.add_argument("--staleness", type=int, nargs="+", default=[0, 1])
    given = parser.parse_args()
    if given.simulated:
        given.steps = given.steps or 200
        simulated(given)
        return
    config = settings(given.policy, given.steps or 8)

    def work(_: object) -> bool:
        with open_workplace(config.cluster, config.placement) as workplace:
            return table(workplace, config, given)

    if not in_workplace(config.cluster, config.placement, work):
        sys.exit(1)


if __name__ == "__main__":
    main()
