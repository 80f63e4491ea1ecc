"""Publication: the trainer writes a version's weights where generators pull them."""

from prefect import task
from prefect.cache_policies import NO_CACHE

from infra.dispatch import Dispatch
from infra.weights import PolicyVersion
from tasks import calls
from tasks.calls import TrainerSpec


@task(name="publish", task_run_name="publish {step}", cache_policy=NO_CACHE)
def publish(dispatch: Dispatch, spec: TrainerSpec, step: int) -> PolicyVersion:
    """Publish version ``step``."""
    return dispatch.run("train", calls.publish, spec, step)
