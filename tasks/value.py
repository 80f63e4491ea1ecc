"""Values of a batch: parts of it by the workers that run the value model, all with one version."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from prefect import task
from prefect.cache_policies import NO_CACHE

from infra.cluster.dispatch import Dispatch
from infra.weights.version import PolicyVersion
from rl.records import Batch, Rollouts
from tasks.calls.critic import Valuer
from tasks.mending import Mend, leased, no_mend


@task(name="value", task_run_name="value {step}", cache_policy=NO_CACHE)
def value(
    dispatch: Dispatch,
    valuer: Valuer,
    newest: Callable[[int], PolicyVersion],
    step: int,
    batch: Batch,
    lease: int,
    mend: Mend = no_mend,
) -> Batch:
    """The batch with the values of its states by version ``step`` of the critic, in leases of so many groups: what is
    computed together, and so its last bits, does not depend on how many workers there are. ``newest(step)`` waits until
    that version is there, which is the newest."""
    version = newest(step)
    assert version.step == step
    parts = [batch.select(range(at, min(at + lease, len(batch)))).rollouts for at in range(0, len(batch), lease)]
    if not parts:
        return replace(batch, values=np.zeros(batch.rollouts.tokens.shape, dtype=np.float32))

    def arguments(part: int) -> tuple[PolicyVersion, Rollouts]:
        return version, _read(parts[part])

    def check(part: int, returned: NDArray[np.float32]) -> str:
        shape = parts[part].tokens.shape
        known = isinstance(returned, np.ndarray) and returned.dtype == np.float32 and returned.shape == shape
        return "" if known and np.isfinite(returned).all() else f"values are not finite float32 {list(shape)}"

    calls = leased(dispatch, "value", valuer.value, arguments, len(parts), check=check, mend=mend, order=(step,))
    found = dict(calls)
    return replace(batch, values=np.concatenate([found[part] for part in range(len(parts))]))


def _read(rollouts: Rollouts) -> Rollouts:
    """What is read of them; the rest need not cross the network."""
    none = rollouts.logprobs[..., :0]
    return replace(rollouts, problems=(), texts=(), logprobs=none, versions=none.astype(np.int32))
