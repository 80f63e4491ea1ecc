"""Whole runs whose leases are handed in before their completions are over: in slices, and by a worker that leaves."""

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from infra.cluster.membership import _hand_back
from infra.cluster.placement import offers
from infra.runs.rollouts import read_rollouts
from tests.processes import started, until


@pytest.fixture
def short(lab: Any) -> Iterator[str]:
    """Two generators whose slices last as long as they are asked to, be it less than their first step."""

    def last(share: float) -> None:
        import rl.slices as slices

        slices.SHARE = share

    lab.settle()
    both = ("generator-0", "verifier-0")
    addresses = [lab.worker(name)[0] for name in both]
    lab.client.run(last, 1e9, workers=addresses)
    yield ",".join(f"worker:{name}" for name in both)
    lab.client.run(last, 0.1, workers=addresses)


def test_completions_that_move_between_two_generators_are_those_of_whole_leases(lab: Any, short: str) -> None:
    options = {"steps": "2", "staleness": "0", "held_out": "0", "placement__verify": "worker:trainer"}
    options |= {"placement__generate": short, "batch__oversample": "1", "audit__share": "1"}
    whole = Path(lab.train(**options).run)
    sliced = Path(lab.train(**options, batch__slice_seconds="0.001").run)
    for name, least in {"leases/slices": 2, "completion/moved": 0.01}.items():
        assert set(lab.metrics(whole, name).values()) == {name == "leases/slices"}
        assert min(lab.metrics(sliced, name).values()) >= least
    asked, found = (read_rollouts(str(run), 1) for run in (whole, sliced))
    assert [{**row, "worker": ""} for row in found] == [{**row, "worker": ""} for row in asked]
    assert {"generator-0", "verifier-0"} <= {name for row in found for name in str(row["worker"]).split(", ")}
    for run in (whole, sliced):
        assert max(lab.metrics(run, "policy/mismatch_kl").values()) < 1e-9
        assert set(lab.metrics(run, "leases/refused").values()) == {0}
        assert set(lab.metrics(run, "staleness/max").values()) == {0}
        assert set(lab.metrics(run, "audit/disagreed").values()) == {0}
    assert min(lab.metrics(sliced, "audit/leases").values()) > 0


@contextmanager
def leaver(lab: Any, mark: Path) -> Iterator[str]:
    """A generator that joins, and draws three tokens of each completion of a lease and then none until it is asked to
    leave; gives its address."""

    def wait(mark: Path) -> None:
        import time

        from rl.slices import SliceEnd

        looks = []

        def end(self: SliceEnd) -> bool:
            looks.append(self)
            deadline = time.monotonic() + 60
            if looks.count(self) == 3:
                mark.touch()
                while not self._leaving() and time.monotonic() < deadline:
                    time.sleep(0.01)
            return self._leaving()

        SliceEnd.__call__ = end  # type: ignore[method-assign]

    words = ["--name", "leaver", "--nthreads", "1", "--no-nanny", "--no-dashboard", "--resources", "GENERATOR=1 CPU=1"]
    with started(sys.executable, "-m", "distributed.cli.dask_worker", lab.client.scheduler.address, *words):
        until(lambda: "leaver" in [offer.name for offer in offers(lab.client)])
        address = next(offer.address for offer in offers(lab.client) if offer.name == "leaver")
        lab.client.run(wait, mark, workers=[address])
        yield address


def test_a_generator_that_is_asked_to_leave_in_the_middle_of_its_lease_loses_no_token(lab: Any, tmp_path: Path) -> None:
    name, mark = lab.new_name(), tmp_path / "waits"
    run = lab.run_folder(name)
    lab.settle()
    with leaver(lab, mark) as address, ThreadPoolExecutor(1) as pool:
        both = "worker:leaver,worker:generator-0"
        options = {"staleness": "1", "held_out": "0", "batch__oversample": "1", "placement__generate": both}
        training = pool.submit(lab.train, run=name, steps="2", **options)
        until(lambda: mark.exists() or training.done(), 60)
        began = time.monotonic()
        lab.client.sync(_hand_back, lab.client.scheduler, [address])
        assert time.monotonic() - began < 5
        result = training.result(120)
    assert result.steps == 2
    assert result.lost == {}
    moved, slices = (lab.metrics(run, name) for name in ("completion/moved", "leases/slices"))
    assert list(moved) == [1, 2]
    assert max(moved.values()) > 0
    assert max(slices.values()) > 1
    rows = [row for step in (1, 2) for row in read_rollouts(str(run), step)]
    assert "leaver, generator-0" in {row["worker"] for row in rows}
    assert min(int(str(row["tokens"])) for row in rows if row["worker"] == "leaver, generator-0") > 0
    assert set(lab.metrics(run, "leases/refused").values()) == {0}
    assert max(lab.metrics(run, "staleness/max").values()) <= 1
