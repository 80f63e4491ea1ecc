"""Workers that leave: with two results on their way, or before they have any."""

import concurrent.futures
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, cast

import pytest

from infra.cluster.exclusions import Exclusions
from infra.cluster.placement import Offer, PlacementConfig, PlacementError
from infra.cluster.timeline import Loading, Measured, Timeline
from infra.dispatch.durations import Durations
from infra.dispatch.handed_out import HandedOut
from infra.dispatch.lease_batch import LeaseBatch
from infra.dispatch.leases import LeaseQueue
from tests.infra.dispatch import no_cluster


def test_what_a_leaving_worker_had_done_before_is_not_thrown_away_while_it_is_fetched() -> None:
    worker = Offer("tcp://laptop", "laptop", {})
    queue = LeaseQueue(no_cluster.calls(), "generate", attempts=3, patience=60, late_after=10)
    batch = LeaseBatch(len, [(0,), (1,)], (), None, (), lambda *_: True, lambda _: frozenset())
    queue._batches[batch.number] = batch
    queue._schedule.add(batch.waiting())
    assigned = []
    for now in (0, 60):
        (one,) = queue._schedule.hand_out([worker.address], now)
        queue._schedule.finished(one, now + 60)
        queue._out[one] = HandedOut(batch, worker, cast("Any", SimpleNamespace(status="finished")), time.time())
        assigned.append(one)
    first, second = assigned
    small: concurrent.futures.Future[Measured[Any]] = concurrent.futures.Future()
    small.set_result(Measured("few tokens", "laptop", worker.address, 1.0, Loading(), leaving=True))
    queue._fetched(second, time.time(), small)  # the first, a whole slice, is larger, and still on its way
    large: concurrent.futures.Future[Measured[Any]] = concurrent.futures.Future()
    large.set_result(Measured("a slice of a minute", "laptop", worker.address, 60.0, Loading()))
    queue._fetched(first, time.time(), large)
    got = [batch.returned.get_nowait() for _ in range(batch.returned.qsize())]
    assert ("a slice of a minute") in [result for _, result in cast("Any", got)], got


class Seen:
    """What a queue knows of a cluster: the workers that are `there`."""

    def __init__(self, patience: float) -> None:
        self.there: list[Offer] = []
        placement = PlacementConfig(generate=["GENERATOR"])
        self.calls = SimpleNamespace(
            timeline=Timeline(),
            silent=set(),
            lacking={},
            stopped=False,
            going=threading.Event(),
            took=Durations(),
            placement=placement,
            exclusions=Exclusions(placement, lambda _: None),
            offers=lambda **_: self.there,
            unsatisfied=lambda call: PlacementError(f"{call}: nobody"),
            **dict.fromkeys(("forget", "unawait", "cancel", "count"), lambda *_: None),
        )
        self.queue = LeaseQueue(cast("Any", self.calls), "generate", attempts=3, patience=patience, late_after=10)
        self.batch = LeaseBatch(len, [(0,)], (), None, (), lambda *_: True, lambda _: frozenset())
        self.queue._batches[self.batch.number] = self.batch
        self.queue._schedule.add(self.batch.waiting())


LAPTOPS = [Offer(f"tcp://laptop-{at}", f"laptop-{at}", {"GENERATOR": 1.0}) for at in range(4)]


def test_a_worker_that_left_in_order_has_not_died_of_what_it_had() -> None:
    """Of a lease that three machines had when they were asked to leave."""
    seen = Seen(patience=60)
    queue = seen.queue
    for at, (worker, successor) in enumerate(pairwise(LAPTOPS)):
        seen.there = [worker]
        queue._poll()
        (assigned,) = queue._schedule.hand_out(list(queue._crew.capable), at)
        pending = cast("Any", SimpleNamespace(status="pending"))
        queue._out[assigned] = HandedOut(seen.batch, worker, pending, time.time())
        for there in ([replace(worker, leaves=True), successor], [successor]):
            seen.there = there
            queue._poll()
        assert not queue._out
    assert seen.batch.returned.empty()
    assert [queue._schedule.deaths.of(item).total() for item in seen.batch.waiting()] == [0] * len(seen.batch.items)


def test_in_a_pause_nobody_is_missed() -> None:
    """All generators were switched off in it: they are waited for from its end on, as long as at any time."""
    seen = Seen(patience=0.4)
    seen.there = [LAPTOPS[0]]
    seen.queue._poll()

    def go_on() -> None:
        time.sleep(1.0)
        seen.there = []
        seen.calls.going.set()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(go_on)
        seen.queue._turn()
    seen.queue._poll()
    time.sleep(0.5)
    with pytest.raises(PlacementError, match="nobody"):
        seen.queue._poll()
