"""A flow that outlives the scheduler of the cluster that it joined: it waits until that is back with its workers."""

import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TypeVar

from distributed import Client

from flows.workplace import IMPORTS, Workplace, opened
from infra.cluster.calls import SchedulerLostError, is_lost
from infra.cluster.cluster import ClusterConfig, ClusterError, cluster, joined_scheduler
from infra.cluster.dispatch import Dispatch
from infra.cluster.placement import PlacementConfig, PlacementError, check_placement

PATIENCE_SECONDS = 900.0  # what a machine needs to be started again by somebody who saw it
LOOK_SECONDS = 1.0
SAY_SECONDS = 10.0  # between two lines about the wait, at first: each pause is twice the one before, a minute at most
T = TypeVar("T")


def outliving_schedulers(
    place: Workplace,
    config: ClusterConfig,
    placement: PlacementConfig,
    begin: Callable[[Workplace], T],
    go_on: Callable[[Workplace], T],
) -> T:
    """What `begin` returns, or what `go_on` does on a new connection as often as the scheduler was lost.

    A local cluster's scheduler is in this process. Raises `SchedulerLostError` when it has not come back in time.
    """
    address = joined_scheduler(config)
    try:
        return begin(place)
    except Exception as error:
        if address is None or not is_lost(error, place.dispatch.client):
            raise
    while True:
        place.display.say(f"the Dask scheduler at {address} is gone; waiting for it: the run goes on when it is back")
        with ExitStack() as stack:
            back = stack.enter_context(_rejoined(place, str(address), config, placement))
            try:
                return go_on(back)
            except Exception as error:
                if not is_lost(error, back.dispatch.client):
                    raise


@contextmanager
def _rejoined(place: Workplace, address: str, config: ClusterConfig, placement: PlacementConfig) -> Iterator[Workplace]:
    """The workplace with a new client, once the placement is satisfied again."""
    began = said = time.monotonic()
    pause = SAY_SECONDS
    with ExitStack() as stack:
        client: Client | None = None
        while True:
            try:
                client = client or stack.enter_context(cluster(config, log_dir=place.home / "logs", preload=IMPORTS))
                check_placement(client, placement)
                break
            except (ClusterError, PlacementError, OSError) as error:
                why = str(error).partition("\n")[0]
                if not isinstance(error, PlacementError):
                    client = None  # it has gone once more, or is not there yet
            now = time.monotonic()
            if now - began > PATIENCE_SECONDS:
                raise SchedulerLostError(f"the Dask scheduler at {address} is gone for {PATIENCE_SECONDS:.0f} s: {why}")
            if now - said >= pause:
                said, pause = now, min(2 * pause, 60.0)
                place.display.say(f"waiting for {now - began:.0f} s: {why}")
            time.sleep(LOOK_SECONDS)
        place.display.say(f"the Dask scheduler at {address} is back, and so are its workers")
        dispatch = stack.enter_context(Dispatch(client, placement, place.display.say))
        back = replace(place, dispatch=dispatch)
        stack.enter_context(opened(back))
        yield back
