"""New versions that come while a generator samples, in a whole run."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.slow


@pytest.fixture
def slow_lab(lab: Any) -> Iterator[Any]:
    """The lab, with a generator that is slower than the trainer: at the third token of a lease it waits for a version
    that it may have and has not, which comes if the batch before is complete."""

    def wait(on: bool) -> None:  # a nested function is sent by value: a worker cannot import this file
        import time

        from tasks.calls.inflight import Sampler, Swaps

        into = getattr(Swaps, "as_it_was", Swaps.into)
        looks: dict[int, int] = {}  # by the identity of a lease's swaps

        def late(self: Swaps, sampler: Sampler) -> int | None:
            looks[id(self)] = looks.get(id(self), 0) + 1
            found, deadline = into(self, sampler), time.monotonic() + 5
            if looks[id(self)] == 3:
                while sampler.version.step < self.step and found is None and time.monotonic() < deadline:
                    time.sleep(0.01)
                    found = into(self, sampler)
            return found

        Swaps.as_it_was = into  # type: ignore[attr-defined]
        Swaps.into = late if on else into  # type: ignore[method-assign]

    lab.settle()
    generator, _ = lab.worker("generator-0")
    lab.client.run(wait, True, workers=[generator])
    yield lab
    lab.client.run(wait, False, workers=[generator])


def test_completions_go_on_with_newer_weights_and_are_no_staler_than_asked(slow_lab: Any) -> None:
    once = {"held_out": "0", "batch__oversample": "1"}  # nothing is replaced: no lease of the next batch comes between
    run = Path(slow_lab.train(steps="4", staleness="1", optimizer__lr="1e-3", **once).run)
    swapped = slow_lab.metrics(run, "staleness/swapped")
    assert list(swapped) == [1, 2, 3, 4]
    assert max(swapped.values()) > 0
    assert swapped[1] == 0  # there is no newer version that its batch may have
    assert max(slow_lab.metrics(run, "staleness/max").values()) <= 1
    assert max(slow_lab.metrics(run, "policy/mismatch_kl").values()) < 0.1
    assert set(slow_lab.metrics(run, "leases/refused").values()) == {0}
