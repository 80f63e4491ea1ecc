"""A worker that says its tokens are of a version that nobody has published yet."""

from infra.cluster.placement import Offer
from infra.weights.version import PolicyVersion
from rl.config import PolicyConfig, SamplingConfig
from rl.records import Problem, Rollouts
from tasks.batch.lease import Lease
from tasks.batch.slices import Slices
from tasks.calls.generator import Generator

GENERATOR = Generator(PolicyConfig(), SamplingConfig(max_tokens=6), samples=1, seed=0, slice_seconds=1.0)
LEASE = Lease(range(4, 5), (Problem("one", "1", "t:1"),))


def part(version: int) -> Rollouts:
    return Rollouts.padded(LEASE.problems, [[7]], [[1]], logprobs=[[-0.5]], version=version, ended=False)


def test_nobody_is_refused_for_what_another_has_said_of_its_version() -> None:
    """v3 is the newest, and none is under way: `Publishing.newest` gives that, whatever it is asked for."""
    slices = Slices(GENERATOR, 5, [LEASE], range(2, 6), 100, lambda _: PolicyVersion(3, "v3", ""))
    if slices.check(0, part(5)) == "":
        slices.take(0, part(5), Offer("tcp://odd", "odd", {}))
    version, *_ = slices.arguments(0)
    assert version.step == 3
    assert slices.check(0, part(3)) == ""  # of whoever goes on; three refusals exclude it
