"""Workers that fell asleep with an item that another one has done meanwhile."""

import concurrent.futures
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any, cast

from infra.cluster.placement import Offer
from infra.cluster.timeline import Loading, Measured, Timeline
from infra.dispatch.handed_out import HandedOut
from infra.dispatch.lease_batch import LeaseBatch
from infra.dispatch.leases import LeaseQueue
from tests.infra.dispatch import no_cluster


def test_who_is_lost_with_an_item_that_is_done_does_not_end_the_batch() -> None:
    workers = {name: Offer(name, name, {}) for name in "abcd"}
    lost: Counter[str] = Counter()
    calls = SimpleNamespace(
        timeline=Timeline(),
        silent=set(),
        forget=lambda *_: None,
        unawait=lambda _: None,
        cancel=lambda _: None,
        count=lambda call: lost.update([call]),
        lacking={},
        exclusions=SimpleNamespace(forgive=lambda *_: None),
    )
    queue = LeaseQueue(cast("Any", calls), "generate", attempts=3, patience=60, late_after=10)
    batch = LeaseBatch(len, [(0,), (1,)], (), None, (), lambda *_: True, lambda _: frozenset())
    queue._batches[batch.number] = batch
    first, other = batch.waiting()
    queue._schedule.add([first])
    for now, name in enumerate("abcd"):  # each is late in its turn: lids are closed
        (one,) = queue._schedule.hand_out([name], now * 1000)
        queue._out[one] = HandedOut(batch, workers[name], cast("Any", SimpleNamespace(status="pending")), time.time())
    queue._schedule.add([other])  # or the next slice of the first: the batch is not over
    queue._schedule.finished(one, 3001)
    assert queue._schedule.done(one) == (True, [])  # d has done it
    del queue._out[one]
    for assigned in list(queue._out):  # the scheduler forgets a, b and c
        queue._lose(assigned)
    assert batch.returned.empty(), batch.returned.get()
    assert batch.number in queue._batches


def test_the_span_of_a_result_that_came_second_says_that_it_was_dropped() -> None:
    workers = {name: Offer(name, name, {}) for name in "ab"}
    queue = LeaseQueue(calls := no_cluster.calls(), "generate", attempts=3, patience=60, late_after=10)
    batch = LeaseBatch(len, [(0,)], (), None, (), lambda *_: True, lambda _: frozenset())
    queue._batches[batch.number] = batch
    queue._schedule.add(batch.waiting())
    assigned = []
    for now, name in ((0, "a"), (1000, "b")):  # a is late
        (one,) = queue._schedule.hand_out([name], now)
        queue._out[one] = HandedOut(batch, workers[name], cast("Any", SimpleNamespace(status="finished")), time.time())
        assigned.append(one)
    for one in reversed(assigned):
        fetched: concurrent.futures.Future[Measured[Any]] = concurrent.futures.Future()
        fetched.set_result(Measured(one.worker, one.worker, one.worker, 5.0, Loading()))
        queue._schedule.finished(one, 1001)
        queue._fetched(one, time.time(), fetched)
    assert [(span.worker, span.dropped, span.lost) for span in calls.timeline.take()] == [
        ("b", False, False),
        ("a", True, False),
    ]
    assert batch.returned.get_nowait() == (0, "b")
    assert batch.returned.empty()
