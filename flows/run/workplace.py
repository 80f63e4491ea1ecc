"""Where a flow works: the home folder, the display, and a cluster whose placement was checked."""

import os
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from flows.run.display import Display
from infra.cluster.cluster import begins, cluster
from infra.cluster.cluster_config import ClusterConfig
from infra.cluster.placement import ANSWER_SECONDS, PlacementConfig, check_placement, check_sources, offers
from infra.cluster.training_lock import TrainingLocks
from infra.dispatch.calls import SchedulerLostError
from infra.dispatch.dispatch import Dispatch
from infra.home import home_line, rlvf_home, rlvf_storage
from infra.interrupts import put_off
from infra.services.settled import import_prefect
from infra.storage import place
from infra.storage.usable import probe_storage
from tasks.batch.failures import Failures

if TYPE_CHECKING:
    from flows.run.prefect_session import PrefectSession

LATELY = 5.0  # seconds since it was asked which generators are there
IMPORTS = {  # before a worker's first call: what its calls import inside them; a verifier needs no torch
    "GENERATOR": (
        "tasks.calls.base",
        "tasks.calls.published",
        "infra.weights.mirror",
        "rl.sampling.sampler",
        "rl.learning.scoring",
        "tasks.calls.served",
    ),
    "TRAINER": (
        "tasks.calls.base",
        "tasks.calls.published",
        "infra.weights.publisher",
        "rl.learning.supervised",
        "rl.model.tiny",
    ),
    "VERIFIER": ("tasks.judge",),
    "REFERENCE": ("tasks.calls.base", "tasks.calls.published", "infra.weights.mirror", "rl.learning.scoring"),
    "CRITIC": ("tasks.calls.base", "tasks.calls.published", "rl.learning.scoring"),
}


@dataclass(frozen=True)
class Workplace:
    """What a flow works with."""

    home: Path
    display: Display
    dispatch: Dispatch
    failures: Failures  # of verifiers
    storage: str  # where what other machines read lies: runs, models; the home unless $RLVF_STORAGE names another
    prefect: "PrefectSession"
    training_locks: TrainingLocks = field(default_factory=TrainingLocks)  # of one training run after another

    @property
    def runs(self) -> str:
        """The folder of runs that are named without a URI."""
        return place.join(self.storage, "runs")

    def generators(self, before: Collection[str]) -> Collection[str]:
        """The names of the workers that may generate, as of some seconds ago; those of `before` where the scheduler is
        away, which whoever waits for it says."""
        with suppress(SchedulerLostError):
            return {offer.name for offer in self.dispatch.offers("generate", lately=LATELY)}
        return before

    def machines(self) -> dict[str, tuple[str, int]]:
        """The machine of each worker that says which it is, and its cores. Raises OSError as `offers`."""
        return {
            offer.name: (offer.machine, offer.cores)
            for offer in offers(self.dispatch.client, ANSWER_SECONDS)
            if offer.cores
        }


_open: ContextVar[Workplace | None] = ContextVar("workplace", default=None)


@contextmanager
def open_workplace(
    config: ClusterConfig,
    placement: PlacementConfig,
    display: Display | None = None,
    prefect_ready: Callable[[], None] = lambda: None,
) -> Iterator[Workplace]:
    """The workplace that is open already (a command's, or that of the flow around this one), or a new one, with
    `prefect_ready` called once its cluster is there and before Prefect is told anything.

    Raises ``PlacementError`` before any work if no worker satisfies one of the calls, or one runs another source of
    rlvf, ``StorageError`` if $RLVF_STORAGE cannot be written.
    """
    outer = _open.get()
    if outer is not None:
        outer.prefect.bind()
        yield outer
        return
    with put_off():
        import_prefect()
        from flows.run.prefect_session import PrefectSession

    home, storage = rlvf_home(), rlvf_storage()
    if storage != str(home):
        probe_storage(storage)
    # nothing here needs a process pool of tokenizers, and forking one after threads started makes it warn
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    with ExitStack() as stack:
        if display is None:
            display = stack.enter_context(Display())
        display.say(home_line())
        display.say(begins(config))
        client = stack.enter_context(cluster(config, log_dir=home / "logs", preload=IMPORTS))
        check_placement(client, placement)
        check_sources(client)
        dispatch = stack.enter_context(Dispatch(client, placement, display.say))
        prefect_ready()
        prefect = stack.enter_context(PrefectSession(home, display.say))
        stack.enter_context(display.heard_by(prefect.log.say))
        prefect.bind()
        workplace = Workplace(home, display, dispatch, Failures(display.say), storage, prefect)
        stack.enter_context(present(workplace))
        yield workplace


@contextmanager
def present(workplace: Workplace) -> Iterator[None]:
    """The workplace that `open_workplace` yields inside."""
    token = _open.set(workplace)
    try:
        yield
    finally:
        _open.reset(token)
