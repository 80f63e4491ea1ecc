"""Publication: the trainer writes a version's weights where generators pull them."""

from collections.abc import Callable
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from infra.dispatch.dispatch import Dispatch
from infra.weights.version import Published
from tasks.calls.generator import prefetch
from tasks.calls.trained import Trained
from tasks.calls.trainer import Trainer


@task(name="publish", task_run_name="publish {step}", cache_policy=NO_CACHE)
def publish(
    dispatch: Dispatch,
    trainer: Trained[Any],
    step: int,
    begun: Callable[[], None] = lambda: None,
    done: Callable[[Published], None] = lambda _: None,
) -> Published:
    """Publish version ``step`` beside the trainer's next update, which may be submitted once ``begun`` was called.
    Generators that sample from the version before begin to fetch it at once."""
    published = dispatch.run(trainer.call, trainer.publish, step, background="publish", begun=begun)
    done(published)
    if isinstance(trainer, Trainer):
        dispatch.tell("generate", prefetch, published.version, trainer.fence)
    return published
