"""A flow that goes on in place when what it worked with is gone: the scheduler of the cluster that it joined, or its
trainer with steps that are nowhere else."""

import time
from collections.abc import Callable
from contextlib import ExitStack, closing
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import TypeVar

from distributed import Client

from flows.run.hold import Lost, TrainerLost
from flows.run.page import CancelledOnPage, watch_run_state
from flows.run.workplace import IMPORTS, Workplace, opened
from infra.cluster.calls import SchedulerLostError, is_lost, poisoned
from infra.cluster.cluster import ClusterConfig, ClusterError, cluster, joined_scheduler
from infra.cluster.placement import PlacementConfig, PlacementError, check_placement

PATIENCE_SECONDS = 900.0  # what a machine needs to be started again by somebody who saw it
POLL_SECONDS = 1.0
SAY_SECONDS = 10.0  # between two lines about the wait, at first: each pause is twice the one before, a minute at most
T = TypeVar("T")
_inside: ContextVar[bool] = ContextVar("inside a flow that goes on", default=False)


@dataclass
class Reached:
    """How far a flow has come, whatever it goes back to."""

    step: int = 0

    def at(self, step: int) -> None:
        """This step is done."""
        self.step = max(self.step, step)


def going_on(
    place: Workplace,
    config: ClusterConfig,
    placement: PlacementConfig,
    begin: Callable[[Workplace], T],
    go_on: Callable[[Workplace], T] | None = None,
    reached: Reached | None = None,
) -> T:
    """What `begin` returns, or `go_on` (`begin` again if there is none) as often as the scheduler or the trainer was
    lost. A flow within another leaves that to the outer one. A local cluster's scheduler is in this process.

    Raises `SchedulerLostError` when that has not come back in time, `CancelledOnPage` when the flow was cancelled
    meanwhile, `PoisonedCallError` when trainers were lost as often as one call is tried and no step more was `reached`.
    """
    if _inside.get():
        return begin(place)
    token = _inside.set(True)
    try:
        return _going_on(place, config, placement, begin, go_on or begin, reached or Reached())
    finally:
        _inside.reset(token)


def _going_on(
    place: Workplace,
    config: ClusterConfig,
    placement: PlacementConfig,
    begin: Callable[[Workplace], T],
    go_on: Callable[[Workplace], T],
    reached: Reached,
) -> T:
    address = joined_scheduler(config)
    lost, at = 0, -1  # trainers, since this step was reached
    now, work = place, begin
    with ExitStack() as clients, closing(place.training_locks):
        while True:
            try:
                with opened(now):
                    return work(now)
            except TrainerLost as error:
                lost, at = (lost + 1, at) if reached.step == at else (1, reached.step)
                if lost >= now.dispatch.attempts:
                    raise poisoned("train", lost) from error
                place.display.say(f"{error}; going on from what is saved")
                client = now.dispatch.client
            except Exception as error:
                if address is None or isinstance(error, Lost) or not is_lost(error, now.dispatch.client):
                    raise
                place.display.say(
                    f"the Dask scheduler at {address} is gone; waiting for it: the run goes on when it is back"
                )
                clients.close()  # and the dispatch on it
                client = _rejoined(clients, place, address, config, placement)
            now, work = replace(place, dispatch=clients.enter_context(now.dispatch.renewed(client))), go_on


def _rejoined(
    stack: ExitStack, place: Workplace, address: str, config: ClusterConfig, placement: PlacementConfig
) -> Client:
    """A new client, once the placement is satisfied again."""
    began = said = time.monotonic()
    pause = SAY_SECONDS
    client: Client | None = None
    # the dispatch of the scheduler that is gone: nothing of it is left to be stopped
    with watch_run_state(place.dispatch, place.display, place.prefect.serves) as cancelled:
        while not cancelled.wait(POLL_SECONDS):
            try:
                client = client or stack.enter_context(
                    cluster(config, log_dir=place.home / "logs", preload=IMPORTS, patience=0.0)
                )
                check_placement(client, placement)
                place.display.say(f"the Dask scheduler at {address} is back, and so are its workers")
                return client
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
    raise CancelledOnPage("cancelled on Prefect's page")
