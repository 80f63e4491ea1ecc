"""Scores of rollouts beside their verification: what an algorithm needs of every lease, made as leases come in."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from prefect import task
from prefect.cache_policies import NO_CACHE

from infra.cluster.dispatch import Dispatch
from infra.storage.manifest import StoreError
from infra.weights.version import PolicyVersion
from rl.admission import refused_logprobs
from rl.graph import Call
from rl.records import Rollouts
from tasks.calls.scorer import Scorer
from tasks.collection import Collection, Lease

AT_ONCE = 64  # leases that wait for their score, at most


class Scores(Protocol):
    """One call of the graph that is made of every lease."""

    @property
    def call(self) -> Call: ...

    def of(
        self, dispatch: Dispatch, step: int, rollouts: Rollouts, refused: Callable[[str], object]
    ) -> NDArray[np.float32]:
        """The field that the call writes, of one lease. `refused` is told why a worker's result is not taken."""
        ...


@task(name="score", task_run_name="score {scores.call.name} {collection.step}", cache_policy=NO_CACHE)
def score(dispatch: Dispatch, collection: Collection, scores: Scores) -> None:
    """Score the collection's leases as they come in, each as a whole: what is computed together, and so its last bits,
    does not depend on how many workers there are."""

    def of(lease: Lease, rollouts: Rollouts) -> None:
        try:
            found = scores.of(dispatch, collection.step, rollouts, collection.refuse)
        except BaseException:
            collection.abandon()
            raise
        collection.scored(lease, scores.call, found)

    with ThreadPoolExecutor(AT_ONCE, scores.call.name) as threads:
        for scored in as_completed([threads.submit(of, *each) for each in collection.arrivals(scores.call)]):
            scored.result()


class ReferenceLost(StoreError):  # noqa: N818
    """The version that is the reference cannot be read, and no published version mends that."""

    remedy = "restore it, or go on without: --algorithm.kl.coefficient 0"


@dataclass(frozen=True)
class ReferenceScores:
    """Log-probs under the reference policy."""

    call: Call
    scorer: Scorer
    version: Callable[[int], PolicyVersion]  # the reference of a step; waits until it is there

    def of(
        self, dispatch: Dispatch, step: int, rollouts: Rollouts, refused: Callable[[str], object]
    ) -> NDArray[np.float32]:
        """[P, G, T]. Raises ReferenceLost."""

        def check(_: int, returned: NDArray[np.float32]) -> str:
            if why := refused_logprobs(returned, rollouts):
                refused(why)
            return why

        asked = [(self.version(step), bare(rollouts))]
        try:
            ((_, found),) = dispatch.lease("reference", self.scorer.score, asked, order=(step,), check=check)
        except StoreError as error:
            raise ReferenceLost(f"the reference policy is missing or damaged: {error}") from error
        return found


def bare(rollouts: Rollouts) -> Rollouts:
    """What a scorer reads of them; the rest need not cross the network."""
    none = rollouts.logprobs[..., :0]
    return replace(rollouts, problems=(), texts=(), logprobs=none, versions=none.astype(np.int32))
