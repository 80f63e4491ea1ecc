"""Generation: the leases of a step, fanned out over the generators."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass

from prefect import task
from prefect.cache_policies import NO_CACHE

from infra.dispatch.dispatch import Dispatch
from infra.dispatch.probe import probe_workers
from infra.dispatch.shares import Sizes
from infra.weights.version import PolicyVersion
from rl.admission import telling
from rl.config import OURS, PolicyConfig
from tasks.batch.collection import Collection
from tasks.batch.lease import Lease, neighbours_joined
from tasks.batch.slices import Slices
from tasks.calls.generator import Generator, check_server
from tasks.mending import Mend, Mending, leased, no_mend
from tasks.turns import episodes_of, in_turns

AT_ONCE = 256  # draws of a batch under way, at most: each has a lease that waits or is being made


@dataclass(frozen=True)
class Admission:
    """What may enter a batch."""

    staleness: int  # versions that a token may be behind the step
    vocabulary: int  # token ids are below
    sizes: Sizes | None = None  # of leases, in prompts; None: they are as large as the collection makes them


def check_servers(dispatch: Dispatch, policy: PolicyConfig) -> None:
    """Raise ServerError unless each generator's server answers it, where these sample (``policy.engine``)."""
    found = [] if policy.engine == OURS else probe_workers(dispatch, "generate", check_server, policy)
    for _, error in found:
        if isinstance(error, Exception):
            raise error


@task(name="generate", task_run_name="generate {collection.step}", cache_policy=NO_CACHE)
def generate(
    dispatch: Dispatch,
    collection: Collection,
    generator: Generator,
    newest: Callable[[int], PolicyVersion],
    admission: Admission,
    mend: Mend = no_mend,
) -> None:
    """Generate the collection's leases as they come up, each with the newest policy when it is handed out, so that no
    worker goes back to older weights. All batches on the way share one queue, in which the leases of an earlier step,
    and of those the earlier groups, come first. What a generator hands in before it is over goes on with whoever is
    free first (`Generator.slice_seconds`), and a batch waits for all of it.

    `newest(at_least)` is the newest version; it waits until there is none before `at_least`.
    """
    step = collection.step
    oldest, mending = max(0, step - admission.staleness), Mending(mend)

    def generate_all(wanted: list[Lease]) -> None:
        again = any(map(collection.without, wanted))  # as they were, without who has made them
        sizes = None if again else admission.sizes
        leases = wanted if sizes is None else neighbours_joined(wanted)
        played = episodes_of(dispatch, collection.problems.environment, generator, step, (step,), collection.refuse)
        try:
            leases = leases if played is None else played.begin(leases)
            slices = Slices(generator, step, leases, range(oldest, step + 1), admission.vocabulary, newest, sizes)

            def made(indices: Iterable[int], order: tuple[int, ...]) -> Iterator[int]:
                calls = leased(
                    dispatch,
                    "generate",
                    generator.generate,
                    slices.arguments,
                    indices,
                    check=lambda index, returned: telling(collection.refuse, slices.check(index, returned)),
                    mending=mending,
                    order=(step, *order),
                    done=slices.take,
                    cuts=slices,
                    without=lambda index: collection.without(leases[index]),
                )
                return (index for index, _ in calls)

            if played is None:
                for index in made(range(len(leases)), (leases[0].groups.start,)):
                    collection.arrive(leases[index], *slices.whole(index))
                return
            for lease, rollouts, parts in in_turns(slices, played, made):
                collection.arrive(lease, rollouts, parts, played.of(lease))
        except BaseException:
            collection.abandon()
            raise

    threads = ThreadPoolExecutor(AT_ONCE, "generate")
    try:
        under_way = []
        for wanted in collection.draws():
            newest(oldest)  # waits here, and not where other batches' leases wait too
            under_way.append(threads.submit(generate_all, wanted))
        for each in as_completed(under_way):
            each.result()
    finally:
        threads.shutdown(wait=False)  # the run that one of them ends stops the others
