"""Scores of rollouts beside their verification: what an algorithm needs of every lease, made as leases come in."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from prefect import task
from prefect.cache_policies import NO_CACHE

from infra.dispatch.dispatch import Dispatch
from infra.storage.manifest import StoreError
from infra.weights.version import PolicyVersion
from rl.admission import Asked, refusal, refused_logprobs, telling
from rl.graph import SCORES, Call
from rl.records import Rollouts
from tasks.batch.collection import Collection
from tasks.batch.lease import Lease
from tasks.calls.generator import Arguments, Generator
from tasks.calls.scorer import Scorer
from tasks.generate import Admission
from tasks.mending import Mend, Mending, leased, no_mend
from tasks.reference import ReferenceLost
from tasks.sets.problem_set import ProblemSet
from tasks.verify import judged

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


@dataclass(frozen=True)
class ReferenceScores:
    """Log-probs under the reference policy."""

    call: ClassVar[Call] = SCORES["reference_logprobs"]

    scorer: Scorer
    version: Callable[[int], PolicyVersion]  # the reference of a step; waits until it is there

    def of(
        self, dispatch: Dispatch, step: int, rollouts: Rollouts, refused: Callable[[str], object]
    ) -> NDArray[np.float32]:
        """[P, G, T]. Raises ReferenceLost."""

        def check(_: int, returned: NDArray[np.float32]) -> str:
            return telling(refused, refused_logprobs(returned, rollouts))

        asked = [(self.version(step), bare(rollouts))]
        try:
            ((_, found),) = dispatch.lease(
                self.call.name,
                self.scorer.score,
                asked,
                order=(step,),
                check=check,
                tokens=lambda _: rollouts.generated_tokens,
            )
        except StoreError as error:
            raise ReferenceLost(f"the reference policy is missing or damaged: {error}") from error
        return found


@dataclass(frozen=True)
class GreedyScores:
    """Rewards of the greedy completion of each prompt."""

    call: ClassVar[Call] = SCORES["baseline"]

    generator: Generator  # that of the run, greedy and with one completion of each
    newest: Callable[[int], PolicyVersion]
    admission: Admission
    set: ProblemSet
    mend: Mend = no_mend

    def of(
        self, dispatch: Dispatch, step: int, rollouts: Rollouts, refused: Callable[[str], object]
    ) -> NDArray[np.float32]:
        """[P], NaN where the verifier failed."""
        problems, oldest = rollouts.problems, max(0, step - self.admission.staleness)
        versions, limit = range(oldest, step + 1), self.generator.sampling.limit
        asked = Asked(problems, self.generator.samples, limit, versions, self.admission.vocabulary)

        def arguments(_: int) -> Arguments:
            return self.newest(oldest), step, range(len(problems)), problems, None

        def check(_: int, returned: Rollouts) -> str:
            return telling(refused, refusal(returned, asked))

        generate = self.generator.generate
        mending = Mending(self.mend)
        calls = leased(dispatch, self.call.name, generate, arguments, [0], check=check, mending=mending, order=(step,))
        ((_, greedy),) = calls
        return judged(dispatch, greedy, self.set, order=(step,), refused=refused).rewards[:, 0]


def bare(rollouts: Rollouts) -> Rollouts:
    """What a scorer reads of them; the rest need not cross the network."""
    none = rollouts.logprobs[..., :0]
    return replace(rollouts, problems=(), texts=(), makers=(), logprobs=none, versions=none.astype(np.int32))
