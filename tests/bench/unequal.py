"""What generating ahead wins on unequal machines: two generators, one of them three times as slow, and a trainer.

All three are slowed (`tests.bench.plan`), by so much that two cores are more than they ask for together: what they
compute takes so many times as long. Generation is to be somewhat faster than the trainer. Runs take turns in one
cluster: staleness 0, staleness 1, and staleness 1 while the slower generator is killed once in every step, in the
middle of a lease. The policy is the same all along, so that all batches cost the same; the first steps of each, in
which speeds get known, are left out.

python -m tests.bench.unequal [--policy tiny] [--steps 24] [--prompts 32] [--turns 1] [--generator 4] [--trainer 4]
    [--json]
"""

import argparse
import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from random import Random
from signal import SIGKILL
from typing import Any

import psutil

from flows.commands.workplace import in_workplace
from flows.config import TrainConfig
from flows.run.workplace import Workplace, open_workplace
from infra.cluster.placement import offers
from infra.home import rlvf_home
from infra.runs.metric_log import read_metrics
from tests.bench.plan import recorded, slowed
from tests.bench.sizes import FAST, SKIPPED, SLOW, TIMES, Figure, figure, settings

TRAINER = "trainer"
WAYS: Mapping[str, Mapping[str, Any]] = {
    "staleness 0": {"staleness": 0},
    "staleness 1": {},
    "staleness 1, the slow one killed in every step": {},
}
KILLED = "killed"


def process_of(client: Any, name: str) -> psutil.Process | None:
    """That works for the cluster under this name; None where it is on its way back."""
    with suppress(OSError, TimeoutError, KeyError, psutil.NoSuchProcess):
        for offer in offers(client, 5.0):
            if offer.name == name:
                return psutil.Process(client.run(os.getpid, workers=[offer.address])[offer.address])
    return None


def is_alive(process: psutil.Process) -> bool:
    with suppress(psutil.NoSuchProcess):
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    return False


def keep_slow(client: Any, name: str, times: float, over: threading.Event) -> None:
    """Slow the worker of this name, and its successors."""
    while not over.wait(0.1):
        if (process := process_of(client, name)) is not None:
            with slowed(process.pid, times):
                while is_alive(process) and not over.wait(0.05):
                    pass


def kill_each_step(client: Any, run: Path, killed: list[int], over: threading.Event) -> None:
    """Kill the slow generator once in every step, some time into a lease."""
    draws, last = Random(0), 0
    while not over.wait(0.05):
        steps = [line.step for line in read_metrics(run / "metrics.jsonl")] if run.exists() else []
        if max(steps, default=0) == last:
            continue
        process, addresses = process_of(client, SLOW), [o.address for o in offers(client, 5.0) if o.name == SLOW]
        if process is None or not addresses:
            continue  # it is on its way back
        while not over.wait(0.02) and not any(client.processing(workers=addresses).values()):
            pass
        over.wait(draws.uniform(0.0, 2.0))
        last = max(line.step for line in read_metrics(run / "metrics.jsonl"))
        if not over.is_set():
            with suppress(psutil.NoSuchProcess):
                process.send_signal(SIGKILL)
                killed.append(last)


@contextmanager
def beside(*jobs: Callable[[threading.Event], None]) -> Iterator[None]:
    """Have these done meanwhile. Raises what they raise."""
    over = threading.Event()
    with ThreadPoolExecutor(len(jobs)) as pool:
        begun = [pool.submit(job, over) for job in jobs]
        try:
            yield
        finally:
            over.set()
    for each in begun:
        each.result()


def run(workplace: Workplace, way: str, config: TrainConfig, slowness: Mapping[str, float]) -> Figure:
    """The figures of a run on machines of this slowness."""
    client, killed = workplace.dispatch.client, list[int]()

    def slow(name: str) -> Callable[[threading.Event], None]:
        return lambda over: keep_slow(client, name, slowness[name], over)

    jobs = [slow(name) for name in slowness]
    if KILLED in way:
        folder = rlvf_home() / "runs" / config.run
        jobs.append(lambda over: kill_each_step(client, folder, killed, over))
    with beside(*jobs):
        record, uri = recorded(workplace, config)
    if KILLED in way and len(set(killed) & set(range(SKIPPED + 1, config.steps))) < (config.steps - SKIPPED) // 2:
        raise RuntimeError(f"it was killed in steps {killed} only")
    return figure(way, config, record, uri)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--policy", default="tiny")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--prompts", type=int, default=32, help="a batch; the more, the longer the steps")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--generator", type=float, default=4.0, help="how much slower the faster generator is")
    parser.add_argument("--trainer", type=float, default=4.0, help="and the trainer")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    slowness = {FAST: given.generator, SLOW: TIMES * given.generator, TRAINER: given.trainer}
    batch = {"prompts": given.prompts, "oversample": 1}  # no group is replaced
    still = {"optimizer": {"lr": 1e-12}, "batch": batch}  # and the policy does not change
    of_all = settings(given.policy, given.steps, still)

    def work(_: object) -> dict[str, list[Figure]]:
        found: dict[str, list[Figure]] = defaultdict(list)
        with open_workplace(of_all.cluster, of_all.placement) as workplace:
            for turn in range(given.turns):
                for way, options in WAYS.items():
                    named = {"run": f"unequal-{time.time_ns()}", **still, **options}
                    found[way].append(run(workplace, way, settings(given.policy, given.steps, named), slowness))
                    print(f"turn {turn + 1}: {found[way][-1]}", file=sys.stderr, flush=True)
        return found

    figures = in_workplace(of_all.cluster, of_all.placement, work)
    if given.json:
        print(json.dumps({way: [asdict(each) for each in by] for way, by in figures.items()}))
        return
    print("| | a step | rollouts/s | trainer busy | generators busy | slow one: of speed | of tokens |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for way, by in figures.items():
        for each in by:
            busy = f"{each.trainer:.0%} | {each.generators:.0%}"
            print(
                f"| {way} | {each.step:.2f} s | {each.rollouts:.1f} | {busy} | {each.speed:.1%} | {each.tokens:.1%} |"
            )


if __name__ == "__main__":
    main()
