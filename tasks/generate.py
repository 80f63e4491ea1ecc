"""Generation: the leases of a step, fanned out over the generators."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from prefect import task
from prefect.cache_policies import NO_CACHE

from infra.cluster.dispatch import Dispatch
from infra.weights.version import PolicyVersion
from rl.admission import Asked, refusal
from rl.records import Rollouts
from tasks.calls.generator import Arguments, Generator
from tasks.collection import Collection, Lease
from tasks.mending import AtOnce, Mend, leased, no_mend


@dataclass(frozen=True)
class Admission:
    """What may enter a batch."""

    staleness: int  # versions that a token may be behind the step
    vocabulary: int  # token ids are below


class Leases(Sequence[Arguments]):
    """The arguments of each lease, made when it is handed out: it takes the newest policy of that moment, which is none
    before one that a worker got earlier, so that no worker goes back to older weights."""

    def __init__(self, step: int, leases: Sequence[Lease], newest: Callable[[], PolicyVersion]) -> None:
        self.step, self.leases, self.newest = step, leases, newest

    def __len__(self) -> int:
        return len(self.leases)

    def __getitem__(self, index: Any) -> Any:
        lease = self.leases[index]
        arguments: Arguments = (self.newest(), self.step, lease.groups, lease.problems)
        return arguments


@task(name="generate", task_run_name="generate {collection.step}", cache_policy=NO_CACHE)
def generate(
    dispatch: Dispatch,
    collection: Collection,
    generator: Generator,
    newest: Callable[[int], PolicyVersion],
    admission: Admission,
    mend: Mend = no_mend,
) -> None:
    """Generate the collection's leases, wave by wave, each with the newest policy when it is handed out. All batches on
    the way share one queue, in which the leases of an earlier step, and of an earlier wave of it, come first.

    `newest(at_least)` is the newest version; it waits until there is none before `at_least`.
    """
    step = collection.step
    oldest = max(0, step - admission.staleness)
    for wave, leases in enumerate(collection.waves()):
        newest(oldest)  # waits here, and not where other batches' leases wait too
        items = Leases(step, leases, lambda: newest(oldest))

        def check(index: int, returned: Rollouts, leases: Sequence[Lease] = leases) -> str:
            asked = Asked(
                leases[index].problems,
                generator.samples,
                generator.sampling.limit,
                range(oldest, step + 1),
                admission.vocabulary,
            )
            why = refusal(returned, asked)
            collection.refused += bool(why)
            return why

        def lease(
            items: Sequence[Arguments], check: Callable[[int, Rollouts], str], at_once: AtOnce, wave: int = wave
        ) -> Iterator[tuple[int, Rollouts]]:
            order = (step, wave)
            return dispatch.lease("generate", generator.generate, items, order=order, check=check, at_once=at_once)

        for index, rollouts in leased(lease, items, check, mend):
            collection.arrive(leases[index], rollouts)
