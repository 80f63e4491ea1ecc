"""PPO with a critic, a reference and a reward model: each role on a worker of its own, and all on one."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from flows.finetune_config import RewardModelConfig
from flows.options.reading import read_config
from infra.cluster.placement import PlacementConfig
from infra.cluster.timeline import Span, read_sessions
from infra.storage import store

STEPS, LEASES = 3, 4  # of each step
PPO = {
    "algorithm": "ppo",
    "algorithm__kl": "0.05",
    "staleness": "0",
    "steps": str(STEPS),
    "optimizer__lr": "1e-3",
    "batch__prompts": "8",
    "batch__lease": str(8 // LEASES),
}
APART = {
    "generate": "generator-0",
    "evaluate": "generator-0",
    "reward": "generator-1",
    "reference": "reference-0",
    "value": "critic-0",
    "train_critic": "critic-0",
    "verify": "verifier-0",
    "train": "trainer",
}


def placed(workers: dict[str, str]) -> dict[str, str]:
    return {f"placement__{call}": f"worker:{worker}" for call, worker in workers.items()}


@pytest.fixture(scope="module")
def judge(lab: Any) -> str:
    """The name of a run that has trained a reward model to prefer sums."""
    from flows.sft import reward_model

    pairs = lab.home / "pairs.jsonl"
    rows = [
        {"prompt": f"add {a} and {b}", "chosen": f"{a} + {b}", "rejected": f"{a} * {b}"}
        for a, b in product(range(10, 16), range(2, 8))
    ]
    pairs.write_text("".join(json.dumps(row) + "\n" for row in rows))
    name = lab.new_name()
    options = {
        "problems": str(pairs),
        "policy": str(lab.policy),
        "cluster.scheduler": lab.client.scheduler.address,
        "batch": "8",
        "steps": "6",
        "optimizer.lr": "1e-3",
        "tracking.system_metrics": "false",
        "run": name,
    }
    lab.settle()
    with lab.prefect():
        reward_model(read_config(RewardModelConfig, file=None, overrides=options))
    return name


def digests(lab: Any, run: Path) -> list[str]:
    """Of the last weights of policy and critic."""
    assert store.versions(str(run / "state"))[-1] == store.versions(str(run / "critic" / "state"))[-1] == STEPS
    return [lab.weights_digest(of, STEPS) for of in (run, run / "critic")]


def spans_of(run: Path) -> list[Span]:
    found = [span for session in read_sessions((run / "timeline.jsonl").read_text()) for span in session]
    return sorted(found, key=lambda span: span.start)


def overlap(one: Span, other: Span) -> float:
    """Seconds in which both went on."""
    return min(one.end, other.end) - max(one.start, other.start)


@pytest.mark.slow
def test_a_worker_for_each_role_or_one_for_all_give_the_same_weights(lab: Any, judge: str) -> None:
    asked = {"verifier": f"reward-model:{judge}"}
    own = {"cluster__scheduler": None, "cluster__threads": "1", "cluster__device": "cpu"}
    own |= {"cluster__generators": "2", "cluster__references": "1", "cluster__critics": "1"}
    apart = Path(lab.train(**PPO, **asked, **own, **placed(APART)).run)
    together = Path(lab.train(**PPO, **asked, **placed(dict.fromkeys(PlacementConfig().calls, "trainer"))).run)
    assert digests(lab, apart) == digests(lab, together)
    for name in ("reward/mean", "reward/reward_model", "loss/kl_reference", "critic/loss", "loss/policy"):
        found = lab.metrics(apart, name)
        assert found == lab.metrics(together, name), name
        assert list(found) == list(range(1, STEPS + 1)), name
    assert min(lab.metrics(apart, "loss/kl_reference").values()) >= 0
    assert lab.metrics(apart, "loss/kl_reference")[STEPS] > 1e-6

    spans = spans_of(apart)
    ran = {(span.call, span.worker) for span in spans}
    for call, worker in APART.items():
        assert {where for what, where in ran if what == call} == {worker}, call
    assert {span.worker for span in spans_of(together)} == {"trainer"}
    # some lease is scored under the reference while it, or another of the same step, is valued
    reference, value = ([span for span in spans if span.call == call] for call in ("reference", "value"))
    assert len(reference) == len(value) == LEASES * STEPS
    for at in range(0, LEASES * STEPS, LEASES):
        both = product(reference[at : at + LEASES], value[at : at + LEASES])
        assert max(overlap(*each) for each in both) > 0, at // LEASES
