"""Sizes of leases by speed against leases of one size, on generators that sleep: what the dispatch makes of them, on a
machine whose cores others use too.

Two real workers of a local cluster, one three times as slow: a lease takes `fixed` and so much a prompt, asleep. A
trainer that sleeps takes one batch after the other, of which two are under way. Seconds of a batch and shares of
prompts are of all but the first three.

python -m tests.bench.leases [--batches 15] [--json]
"""

import argparse
import json
import threading
import time
from collections import Counter
from dataclasses import asdict, dataclass
from typing import Any

from flows.benches.generators import PromptCounts
from infra.cluster.cluster import cluster
from infra.cluster.cluster_config import ClusterConfig
from infra.cluster.placement import Offer, PlacementConfig
from infra.dispatch.dispatch import Dispatch
from infra.dispatch.shares import Sizes
from infra.dispatch.speeds import Made

FAST, SLOW, TIMES = "generator-0", "generator-1", 3
PROMPTS, LEASE, SECONDS = 32, 16, 30.0
EACH = 0.06  # seconds of a prompt on the fast one
FIXED = {"none": 0.0, "a fifth": 0.24}  # seconds of a lease, whatever its size: of one of LEASE prompts
TRAINING = {"waits": 0.0, "is as fast": 1.4}  # seconds of an update
SKIPPED = 3  # batches


@dataclass(frozen=True)
class Figure:
    """One way."""

    fixed: str
    trainer: str
    sizes: str
    seconds: float  # a batch
    speed: float  # the slow one's share of speed
    prompts: float  # and of prompts
    leases: float  # a batch


class Prompts(PromptCounts):
    """The leases of a batch."""

    def __init__(self, fixed: float, *, cut: bool) -> None:
        super().__init__([PROMPTS] if cut else [LEASE] * (PROMPTS // LEASE))
        self.fixed, self.is_cut = fixed, cut
        self.by: Counter[str] = Counter()

    def __getitem__(self, index: Any) -> Any:
        return self.fixed, EACH, self.counts[index]

    def sizes(self, _: int) -> Sizes | None:
        return Sizes(LEASE, SECONDS) if self.is_cut else None

    def made(self, index: int, _: object) -> Made:
        return Made(1.0, self.counts[index])

    def take(self, index: int, _: object, worker: Offer) -> bool:
        self.by[worker.name] += self.counts[index]
        return True


def sleep(fixed: float, each: float, count: int) -> None:
    from distributed import get_worker

    time.sleep((TIMES if get_worker().name == SLOW else 1) * (fixed + each * count))


def measure(dispatch: Dispatch, fixed: str, trainer: str, batches: int, *, cut: bool) -> Figure:
    """So many batches, two under way."""
    made = [Prompts(FIXED[fixed], cut=cut) for _ in range(batches)]
    whole = [threading.Event() for _ in made]

    def generate(batch: int) -> None:
        of = made[batch]
        for _ in dispatch.lease("generate", sleep, of, order=(batch,), done=of.take, cuts=of):
            pass
        whole[batch].set()

    threads = [threading.Thread(target=generate, args=(batch,), daemon=True) for batch in range(batches)]
    threads[0].start()
    for batch in range(batches):
        if batch == SKIPPED:
            before = dispatch.timeline.take()
            began = time.perf_counter()
        if batch + 1 < batches:
            threads[batch + 1].start()
        whole[batch].wait()
        time.sleep(TRAINING[trainer])
    spans = [span for span in dispatch.timeline.take() if not span.lost]
    seconds = (time.perf_counter() - began) * PROMPTS / sum(span.tokens for span in spans)
    speed = {
        name: sum(span.tokens for span in [*before, *spans] if span.worker == name)
        / sum(span.end - span.start for span in [*before, *spans] if span.worker == name)
        for name in (FAST, SLOW)
    }
    by = sum((each.by for each in made[SKIPPED:]), Counter[str]())
    leases = sum(map(len, made[SKIPPED:])) / (batches - SKIPPED)
    shares = speed[SLOW] / sum(speed.values()), by[SLOW] / by.total()
    return Figure(fixed, trainer, "by speed" if cut else "of one size", seconds, *shares, leases)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batches", type=int, default=15)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with cluster(ClusterConfig(generators=2, threads=1, device="cpu")) as client:
        for fixed in FIXED:
            for trainer in TRAINING:
                for cut in (False, True):
                    with Dispatch(client, PlacementConfig()) as dispatch:
                        found = measure(dispatch, fixed, trainer, given.batches, cut=cut)
                    if given.json:
                        print(json.dumps(asdict(found)), flush=True)
                        continue
                    shares = f"{found.speed:5.1%} of speed, {found.prompts:5.1%} of prompts"
                    print(
                        f"fixed {found.fixed:8s} trainer {found.trainer:11s} {found.sizes:12s} {found.seconds:5.2f} s "
                        f"and {found.leases:.1f} leases a batch   slow one: {shares}",
                        flush=True,
                    )


if __name__ == "__main__":
    main()
