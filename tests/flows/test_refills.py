"""Whole runs that replace groups before all verdicts are in."""

from pathlib import Path
from typing import Any

import pytest

from infra.runs.rollouts import read_rollouts
from tasks.batch.refills import Refills


@pytest.mark.slow
def test_replacements_that_wait_for_no_verdict_change_no_bit(lab: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """On two generators, against waves on one."""
    draw = Refills.draw
    early: list[range] = []

    def in_waves(self: Refills, *, broken: bool) -> list[range]:
        return draw(self, broken=broken) if self.all_judged else []

    def counted(self: Refills, *, broken: bool) -> list[range]:
        waits = not self.all_judged
        found = draw(self, broken=broken)
        early.extend(found if waits else [])
        return found

    lab.settle()
    options = {"steps": "2", "staleness": "0", "held_out": "0", "batch__lease": "1", "batch__oversample": "4"}
    options |= {"audit__share": "0", "placement__verify": "worker:trainer"}
    options |= {"batch__prompts": "8", "batch__samples": "2"}  # groups of which some teach nothing, whatever the policy
    runs = []
    for how, workers in ((in_waves, "worker:generator-0"), (counted, "worker:generator-0,worker:verifier-0")):
        monkeypatch.setattr(Refills, "draw", how)
        runs.append(Path(lab.train(**options, placement__generate=workers).run))
    assert early
    waves, run = ([{**row, "worker": ""} for step in (1, 2) for row in read_rollouts(str(run), step)] for run in runs)
    assert run == waves
    assert lab.weights_digest(runs[1], 2) == lab.weights_digest(runs[0], 2)
