"""Recovery of a flow in place: its work begins again from what is saved when the scheduler of the cluster that it
joined is lost, or the trainer with steps that no checkpoint holds."""

import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from contextlib import ExitStack, closing
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TypeVar

from distributed import Client

from flows.run.hold import Lost, TrainerLost
from flows.run.opened import Opened
from flows.run.page import CancelledOnPage, watch_run_state
from flows.run.workplace import IMPORTS, Workplace, present
from infra.cluster.cluster import ClusterError, cluster
from infra.cluster.cluster_config import ClusterConfig, joined_scheduler
from infra.cluster.placement import PlacementError, check_placement
from infra.dispatch.calls import SchedulerLostError, is_lost
from infra.dispatch.deaths import poisoned

PATIENCE_SECONDS = 900.0  # what a machine needs to be started again by somebody who saw it
POLL_SECONDS = 1.0
SAY_SECONDS = 10.0  # between two lines about the wait, at first: each pause is twice the one before, a minute at most
T = TypeVar("T")
_inside: ContextVar[bool] = ContextVar("inside a flow with recovery", default=False)


@dataclass
class Progress:
    """What a flow has made in all of its tries, whatever checkpoint it goes back to."""

    opened: Opened | None = None  # since its run is on storage

    step: int = 0  # the highest
    completions: int = 0
    seconds: float = 0.0  # of the steps
    stages: dict[str, float] = field(default_factory=lambda: defaultdict(float))  # of the seconds, by stage
    began: float = field(default_factory=time.perf_counter)

    def made(self, step: int) -> None:
        """This step is made, perhaps again."""
        self.step = max(self.step, step)

    def pace(self) -> tuple[float, dict[str, float]]:
        """Completions a second of the steps, and the share of their time of each stage."""
        elapsed = max(self.seconds, 1e-9)
        stages = {stage: spent / elapsed for stage, spent in self.stages.items()}
        return self.completions / elapsed, {**stages, "between": max(0.0, 1 - sum(stages.values()))}

    def count(self, completions: int, seconds: float, spent: Mapping[str, float]) -> None:
        """Count a step that took so many seconds, and of these what it spent in each stage."""
        self.completions += completions
        self.seconds += seconds
        for stage, share in spent.items():
            self.stages[stage] += share


def with_recovery(
    workplace: Workplace, config: ClusterConfig, work: Callable[[Workplace], T], progress: Progress | None = None
) -> T:
    """The result of `work`, which is called again as often as the scheduler of a joined cluster or the trainer is lost.
    A flow within another leaves that to the outer one. A local cluster's scheduler is in this process.

    Raises:
        SchedulerLostError: the scheduler did not come back in time.
        CancelledOnPage: the flow was cancelled while it was waited for.
        PoisonedCallError: trainers were lost as often as one call is tried, and no step more was made.
    """
    if _inside.get():
        return work(workplace)
    address = joined_scheduler(config)
    progress = progress or Progress()
    lost, at = 0, -1  # trainers, since this step was made
    now = workplace
    with ExitStack() as stack, ExitStack() as clients, closing(workplace.training_locks):
        stack.callback(_inside.reset, _inside.set(True))
        while True:
            try:
                with present(now):
                    return work(now)
            except TrainerLost as error:
                lost, at = (lost + 1, at) if progress.step == at else (1, progress.step)
                if lost >= now.dispatch.attempts:
                    raise poisoned("train", {"the trainer": lost}) from error
                workplace.display.say(f"{error}; going on from what is saved")
                client = now.dispatch.client
            except Exception as error:
                if address is None or isinstance(error, Lost) or not is_lost(error, now.dispatch.client):
                    raise
                workplace.display.say(
                    f"the Dask scheduler at {address} is gone; waiting for it: the run goes on when it is back"
                )
                clients.close()  # and the dispatch on it
                client = _rejoined(clients, workplace, address, config)
            now = replace(workplace, dispatch=clients.enter_context(now.dispatch.renewed(client)))


def _rejoined(stack: ExitStack, workplace: Workplace, address: str, config: ClusterConfig) -> Client:
    """A client of the scheduler that is back, once its workers satisfy the placement."""
    began = said = time.monotonic()
    pause = SAY_SECONDS
    client: Client | None = None
    # the dispatch of the scheduler that is gone: nothing of it is left to be stopped
    with watch_run_state(workplace.dispatch, workplace.display, workplace.prefect.serves) as cancelled:
        while not cancelled.wait(POLL_SECONDS):
            try:
                client = client or stack.enter_context(
                    cluster(config, log_dir=workplace.home / "logs", preload=IMPORTS, patience=0.0)
                )
                check_placement(client, workplace.dispatch.placement, workplace.dispatch.required)
                workplace.display.say(f"the Dask scheduler at {address} is back, and so are its workers")
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
                workplace.display.say(f"waiting for {now - began:.0f} s: {why}")
    raise CancelledOnPage("cancelled on Prefect's page")
