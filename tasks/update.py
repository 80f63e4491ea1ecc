"""One update on the trainer, saved before it counts."""

from collections.abc import Mapping

from prefect import task
from prefect.cache_policies import NO_CACHE

from infra.dispatch.dispatch import Dispatch
from rl.records import Batch, Learned
from tasks.calls.trainer import Trainer


@task(name="update", task_run_name="update {step}", cache_policy=NO_CACHE)
def update(dispatch: Dispatch, trainer: Trainer, step: int, batch: Batch, figures: Mapping[str, float]) -> Learned:
    """Make version ``step + 1`` on the trainer. When this returns, its checkpoint is durable if
    ``checkpoint.every`` makes one of this version, with ``figures`` of the batch in it."""
    return dispatch.run("train", trainer.advance, step, batch, figures)
