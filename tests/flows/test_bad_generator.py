"""Whole runs with a machine on which every call raises: its home is a file."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from flows.run.workplace import IMPORTS
from tests.flows.accidents import check_steps
from tests.processes import started, until

STEPS = 3


@pytest.fixture(scope="module")
def broken(lab: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of a generator that joins the lab's cluster for these tests, and says that it has MPS as nobody else."""
    from infra.cluster.placement import offers

    home = tmp_path_factory.mktemp("broken") / "home"
    home.touch()
    lab.settle()
    words = ("--name", "broken", "--nthreads", "1", "--no-nanny", "--no-dashboard", "--resources", "GENERATOR=1 MPS=1")
    preloaded = [word for module in IMPORTS["GENERATOR"] for word in ("--preload", module)]  # it fails at once
    with started(
        *(sys.executable, "-m", "distributed.cli.dask_worker", lab.client.scheduler.address, *words, *preloaded),
        env=os.environ | {"RLVF_HOME": str(home), "OMP_NUM_THREADS": "1"},
    ):
        until(lambda: any(offer.name == "broken" for offer in offers(lab.client)))
        yield home
    until(lambda: len(offers(lab.client)) == 3)


@pytest.mark.slow
def test_a_run_goes_on_without_it_and_says_so_once(lab: Any, broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    name = lab.new_name()
    lab.train(run=name, steps=str(STEPS))
    err = capsys.readouterr().err
    check_steps(lab, lab.run_folder(name), STEPS)
    why = f"broken: ValueError: RLVF_HOME = {broken}: {broken} is no folder; name one, or one to be made; "
    assert [line.partition(why)[2] for line in err.splitlines() if why in line] == [
        "another worker does this lease of evaluate",
        "it gets no more such leases in this run: 3 of them failed",
    ], err


@pytest.mark.slow
def test_a_run_that_has_only_that_one_ends_with_how_to_go_on(lab: Any, broken: Path) -> None:
    name = lab.new_name()
    options = lab.options(run=name, steps="2", **{"placement.generate": "GENERATOR,MPS"})
    with lab.command("train", options=options) as command:
        code, _, err = command.finish(240)
    assert code == 2
    assert err.count(f"rlvf: stopped by what failed on broken; go on with: rlvf train --resume {name}") == 1, err
    assert f"RLVF_HOME = {broken}: {broken} is no folder" in err
