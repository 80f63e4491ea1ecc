"""A worker that leaves while two of its results are on their way."""

import concurrent.futures
import time
from types import SimpleNamespace
from typing import Any, cast

from infra.cluster.placement import Offer
from infra.cluster.timeline import Loading, Measured, Timeline
from infra.dispatch.lease_batch import LeaseBatch
from infra.dispatch.leases import LeaseQueue, _Out


def test_what_a_leaving_worker_had_done_before_is_not_thrown_away_while_it_is_fetched() -> None:
    worker = Offer("tcp://laptop", "laptop", {})
    calls = SimpleNamespace(
        timeline=Timeline(), silent=set(), forget=lambda *_: None, unawait=lambda _: None, took=None, lacking={}
    )
    queue = LeaseQueue(cast("Any", calls), "generate", attempts=3, patience=60, late_after=10)
    batch = LeaseBatch(len, [(0,), (1,)], (), None, (), lambda *_: True, lambda _: frozenset())
    queue._batches[batch.number] = batch
    queue._schedule.add(batch.waiting())
    assigned = []
    for now in (0, 60):
        (one,) = queue._schedule.hand_out([worker.address], now)
        queue._schedule.finished(one, now + 60)
        queue._out[one] = _Out(batch, worker, cast("Any", SimpleNamespace(status="finished")), time.time())
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
