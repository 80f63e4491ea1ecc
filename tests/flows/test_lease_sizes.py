"""Whole runs whose leases are cut to what suits each generator."""

import json
from pathlib import Path
from typing import Any

import pytest

from infra.runs.rollouts import read_rollouts


@pytest.mark.slow
def test_leases_of_any_size_make_the_same_completions(lab: Any) -> None:
    both = ",".join(f"worker:{name}" for name in ("generator-0", "verifier-0"))
    options = {"steps": "1", "staleness": "1", "held_out": "0", "audit__share": "0", "batch__oversample": "1"}
    options |= {"placement__generate": both, "placement__verify": "worker:trainer", "batch__prompts": "24"}
    fixed = Path(lab.train(**options, lease__seconds="0").run)
    cut = Path(lab.train(**options).run)
    assert lab.metrics(fixed, "leases/prompts") == {1: 2}  # batch.lease
    assert lab.metrics(cut, "leases/prompts")[1] > 2  # once it is known what they do
    spans = [json.loads(line) for line in (cut / "timeline.jsonl").read_text().splitlines()]
    sizes = [span["tokens"] for span in spans if span.get("call") == "generate"]
    asked, found = (read_rollouts(str(run), 1) for run in (fixed, cut))
    assert sum(sizes) == sum(int(str(row["tokens"])) for row in found)
    assert max(sizes) > 2 * min(sizes)
    assert [{**row, "worker": ""} for row in found] == [{**row, "worker": ""} for row in asked]
    for run in (fixed, cut):
        assert lab.metrics(run, "policy/mismatch_kl")[1] == pytest.approx(0, abs=1e-6)
        assert lab.metrics(run, "leases/refused") == {1: 0}
