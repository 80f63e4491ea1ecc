"""Whole runs whose leases are handed in before their completions are over: in slices, and by a worker that leaves."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from infra.dispatch.firsts import Firsts
from infra.runs.rollouts import read_rollouts
from tests.processes import until


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


@pytest.mark.slow
def test_completions_that_move_between_two_generators_are_those_of_whole_leases(lab: Any, short: str) -> None:
    options = {"steps": "1", "staleness": "0", "held_out": "0", "placement__verify": "worker:trainer"}
    options |= {"placement__generate": short, "batch__oversample": "1", "batch__lease": "1"}  # two wait, of four
    whole = Path(lab.train(**options, audit__share="0").run)
    sliced = Path(lab.train(**options, audit__share="1", batch__slice_seconds="0.01").run)
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
    assert lab.metrics(sliced, "audit/disagreed") == {1: 0}
    assert lab.metrics(sliced, "audit/leases")[1] > 0


@pytest.fixture
def leaver(lab: Any, tmp_path: Path) -> Iterator[Path]:
    """A generator that draws three tokens of each completion of its lease, makes this file, and draws none until it is
    asked to leave."""

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

        SliceEnd.as_it_was = SliceEnd.__call__  # type: ignore[attr-defined]
        SliceEnd.__call__ = end  # type: ignore[method-assign]

    def stay(dask_worker: Any) -> None:
        from distributed import Status

        from rl.slices import SliceEnd

        SliceEnd.__call__ = SliceEnd.as_it_was  # type: ignore[attr-defined, method-assign]
        dask_worker.status = Status.running

    lab.settle()
    address, _ = lab.worker("verifier-0")
    lab.client.run(wait, tmp_path / "waits", workers=[address])
    yield tmp_path / "waits"
    lab.client.run(stay, workers=[address])


def test_a_generator_that_is_asked_to_leave_in_the_middle_of_its_lease_loses_no_token(
    lab: Any, leaver: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not go: how the cluster lets it go is tested in tests/infra/dispatch/test_slices.py."""
    monkeypatch.setattr(Firsts, "share", lambda *_: None)  # it is its first lease, which the other would have done too
    name = lab.new_name()
    run = lab.run_folder(name)
    scheduler, (address, _) = lab.client.scheduler, lab.worker("verifier-0")
    places = {"placement__generate": "worker:verifier-0,worker:generator-0", "placement__verify": "worker:trainer"}
    with ThreadPoolExecutor(1) as pool:
        options = {"staleness": "1", "held_out": "0", "batch__oversample": "1", "audit__share": "0", **places}
        training = pool.submit(lab.train, run=name, steps="2", **options)
        until(lambda: leaver.exists() or training.done(), 60)
        began = time.monotonic()
        lab.client.sync(scheduler.retire_workers, workers=[address], close_workers=False, remove=False)
        until(lambda: not any(lab.client.sync(scheduler.processing, workers=[address]).values()))
        assert time.monotonic() - began < 5
        result = training.result(120)
    assert result.steps == 2
    assert result.lost == {}
    slices = lab.metrics(run, "leases/slices")
    step = min(step for step, count in slices.items() if count > 1)  # the other may have drawn the first batch alone
    assert slices[step] == 1.5  # one lease of two
    assert lab.metrics(run, "completion/moved")[step] > 0
    rows = read_rollouts(str(run), step)
    assert {row["worker"] for row in rows} >= {"verifier-0, generator-0", "generator-0"}
    assert set(lab.metrics(run, "leases/refused").values()) == {0}
    assert max(lab.metrics(run, "staleness/max").values()) <= 1
