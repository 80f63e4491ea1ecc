"""Sizes of leases by speed against leases of one size: two generators, one of them slowed three times, at staleness 1.

The slow one is stopped for twice as long as it has computed (`tests.bench.plan`). Runs take turns in one cluster; the
first steps of each, in which speeds get known, are left out. Share of speed: a worker's tokens a second of its leases,
without waits for weights, of the sum of both. Meant for a quiet machine with two cores, where it takes some four
minutes.

python -m tests.bench.sizes [--policy tiny] [--steps 30] [--turns 2] [--json]
"""

import argparse
import json
import os
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import mean, median

from flows.commands.workplace import in_workplace
from flows.config import TrainConfig
from flows.run.workplace import Workplace, open_workplace
from infra.cluster.placement import offers
from infra.runs.record import Record
from infra.runs.rollouts import read_rollouts
from tests.bench.plan import recorded, slowed

FAST, SLOW, TIMES = "generator-0", "generator-1", 3.0
SKIPPED = 8  # steps at the beginning
WAYS: Mapping[str, Mapping[str, object]] = {"of one size": {"lease": {"seconds": 0}}, "by speed": {}}


@dataclass(frozen=True)
class Figure:
    """One way's runs: medians over the turns."""

    way: str
    step: float  # seconds: the median
    rollouts: float  # a second
    trainer: float  # share of the step in which it computes
    generators: float  # share of the time in which they do, both
    speed: float  # the slow one's share of speed
    tokens: float  # and of tokens
    leases: float  # a step


def settings(policy: str, steps: int, given: Mapping[str, object]) -> TrainConfig:
    """What is trained."""
    return TrainConfig.model_validate(
        {
            "policy": {"model": policy},
            "staleness": 1,
            "steps": steps,
            "run": f"sizes-{time.time_ns()}",
            "held_out": 0,
            "audit": {"share": 0},
            "cluster": {"generators": 2, "threads": 1},
            "tracking": {"report": False, "system_metrics": False, "rollouts_every": 1},
            **given,
        }
    )


def run(workplace: Workplace, way: str, config: TrainConfig) -> Figure:
    """The figures of a run."""
    client = workplace.dispatch.client
    pids: dict[str, int] = client.run(os.getpid)
    (slow,) = [pids[offer.address] for offer in offers(client) if offer.name == SLOW]
    with slowed(slow, TIMES):
        record, uri = recorded(workplace, config)
    return figure(way, config, record, uri)


def figure(way: str, config: TrainConfig, record: Record, uri: str) -> Figure:
    """Of a run that was made."""
    spans = record.sessions[-1]
    since = [span.end for span in spans if span.call == "train"][SKIPPED - 1]
    leases = [span for span in spans if span.call == "generate" and span.start > since and not span.lost]
    seconds: dict[str, float] = defaultdict(float)
    for span in leases:
        seconds[span.worker] += span.end - span.start - span.loading
    tokens: Counter[str] = Counter()
    for step in range(SKIPPED + 2, config.steps + 1):  # begun after the last of those that are left out
        for row in read_rollouts(uri, step):
            tokens[str(row["worker"])] += int(str(row["tokens"]))
    speed = {by: tokens[by] / seconds[by] if by in seconds else 0.0 for by in (FAST, SLOW)}  # it may have got nothing
    figures = {
        name: [value for step, value in record.curve(name).items() if step > SKIPPED]
        for name in ("perf/step_seconds", "perf/rollouts_per_second", "perf/trainer_busy", "perf/generator_busy")
    }
    step_seconds, rollouts, trainer, generators = figures.values()
    return Figure(
        way,
        median(step_seconds),
        sum(r * s for r, s in zip(rollouts, step_seconds, strict=True)) / sum(step_seconds),
        mean(trainer),
        mean(generators),
        speed[SLOW] / sum(speed.values()),
        tokens[SLOW] / tokens.total(),
        len(leases) / (config.steps - SKIPPED),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", default="tiny")
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--turns", type=int, default=2)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    any_of_them = settings(given.policy, given.steps, {})

    def work(_: object) -> list[Figure]:
        found: dict[str, list[Figure]] = defaultdict(list)
        with open_workplace(any_of_them.cluster, any_of_them.placement) as workplace:
            for turn in range(given.turns):
                for way, options in WAYS.items():
                    found[way].append(run(workplace, way, settings(given.policy, given.steps, options)))
                    print(f"turn {turn + 1}: {found[way][-1]}", file=sys.stderr, flush=True)
        numbers = [name for name in Figure.__dataclass_fields__ if name != "way"]
        return [
            Figure(way, **{name: median(getattr(each, name) for each in by) for name in numbers})
            for way, by in found.items()
        ]

    figures = in_workplace(any_of_them.cluster, any_of_them.placement, work)
    if given.json:
        print(json.dumps([asdict(each) for each in figures]))
        return
    for each in figures:
        busy = f"trainer busy {each.trainer:4.0%}   generators {each.generators:4.0%}"
        slow = f"slow one: {each.speed:5.1%} of speed, {each.tokens:5.1%} of tokens"
        pace = f"step {each.step:5.2f} s   {each.rollouts:6.1f} rollouts/s   {each.leases:4.1f} leases a step"
        print(f"{each.way:12s} {pace}   {busy}   {slow}")


if __name__ == "__main__":
    main()
