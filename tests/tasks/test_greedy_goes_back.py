"""The greedy baseline beside leases in flight."""

from collections.abc import Callable
from dataclasses import replace

from infra.weights.version import PolicyVersion
from tests.tasks.test_inflight import FLYING, _nothing_resident, arrives, generate, here, seen, versions

__all__ = ["_nothing_resident", "arrives", "versions"]


def test_a_greedy_lease_does_not_take_its_worker_back_to_older_weights(
    versions: list[PolicyVersion], arrives: Callable[..., None]
) -> None:
    """It was handed out with the version of that moment, waited behind a lease that has swapped meanwhile, and may be
    of the newer one as well (`Admission`): going back is a whole version to be read, and again on the way forth."""
    old, new = versions
    generate(old)
    arrives(new)
    assert 1 in seen(generate(old))
    greedy = replace(FLYING, greedy=True, samples=1)  # as flows.run.scores makes it
    found = generate(old, spec=greedy)
    assert len(set(seen(found))) == 1
    assert here()._version == new.id
