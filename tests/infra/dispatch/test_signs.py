"""When workers gave their last sign of life, by the clock of who asks."""

import pytest

from infra.cluster.placement import Offer
from infra.dispatch.signs import GAP_SECONDS, Signs, poll_seconds


def said(count: int, seen: float) -> list[Offer]:
    return [Offer(f"tls://10.0.0.1:{at}", f"w{at}", {}, seen=seen if at else 0.0) for at in range(count)]


@pytest.mark.parametrize("count", [2, 300, 1000, 5000])
def test_a_worker_is_quiet_for_as_long_as_the_scheduler_has_heard_nothing_of_it_however_seldom_that_is_asked(
    count: int,
) -> None:
    signs, now = Signs(), 0.0
    for turn in range(5):
        now = turn * 1.2 * poll_seconds(count)  # an answer may take a while
        signs.poll(said(count, now), now)
    assert signs.quiet("tls://10.0.0.1:0", now) == now > 0
    assert signs.quiet("tls://10.0.0.1:1", now) == 0


@pytest.mark.parametrize("count", [2, 300, 1000, 5000])
def test_after_a_time_in_which_nobody_asked_nobody_is_quiet(count: int) -> None:
    signs = Signs()
    signs.poll(said(count, 0.0), 0.0)
    later = 2 * max(GAP_SECONDS, poll_seconds(count))
    signs.poll(said(count, 0.0), later)
    assert signs.quiet("tls://10.0.0.1:0", later) == 0
    assert signs.quiet("tls://nobody", later) == 0
