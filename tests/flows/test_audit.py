"""Whole runs with a generator one of whose layers is perturbed: what it made is made again by the other, and who it is
and why it gets nothing any more is to be seen."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = pytest.mark.slow

STEPS = 2


@pytest.fixture
def perturbed(lab: Any) -> Iterator[str]:
    """The name of a worker that samples, meanwhile, from another first layer than it is given."""

    def perturb() -> None:
        import rl.loading.policy as loading
        from rl.model.policy import Policy

        def noisy(policy: Any) -> None:
            import torch

            noise = torch.Generator().manual_seed(0)
            with torch.no_grad():
                for weight in policy.model.model.layers[0].parameters():
                    weight += weight.std() * torch.randn(weight.shape, generator=noise)

        def load_policy(*given: Any, **named: Any) -> Policy:
            policy = sound[0](*given, **named)
            noisy(policy)
            return policy

        def load_weights(policy: Policy, *given: Any, **named: Any) -> None:
            sound[1](policy, *given, **named)
            noisy(policy)

        sound = loading.load_policy, Policy.load_weights
        loading._sound = sound  # type: ignore[attr-defined]
        loading.load_policy, Policy.load_weights = load_policy, load_weights  # type: ignore[assignment,method-assign]

    def mend() -> None:
        import rl.loading.policy as loading
        from infra.cluster.resident import drop
        from rl.model.policy import Policy

        loading.load_policy, Policy.load_weights = loading._sound  # type: ignore[attr-defined,method-assign]
        for name in ("sampler", "mirror"):
            drop(name)

    lab.settle()
    name = "verifier-0"  # nobody else is there beside the trainer and another generator
    address, _ = lab.worker(name)
    lab.client.run(perturb, workers=[address])
    yield name
    lab.client.run(mend, workers=[address])


def test_one_whose_layer_is_perturbed_is_out_and_the_run_is_what_it_would_be_without_it(
    lab: Any, perturbed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [lab.run_folder(name) for name in (lab.new_name(), lab.new_name())]
    options = {"steps": str(STEPS), "staleness": "0", "held_out": "0", "placement__verify": "worker:trainer"}
    both = f"worker:generator-0,worker:{perturbed}"
    lab.train(run=runs[0].name, **options, audit__share="0")
    capsys.readouterr()
    lab.train(run=runs[1].name, **options, audit__share="1", placement__generate=both)
    err = capsys.readouterr().err
    assert lab.weights_digest(runs[1], STEPS) == lab.weights_digest(runs[0], STEPS)

    found = {name: lab.metrics(runs[1], f"audit/{name}") for name in ("disagreed", "redrawn", "leases")}
    assert list(found["disagreed"]) == [1]  # then there is one generator
    assert found["disagreed"][1] >= 2
    assert found["redrawn"][1] > 0
    pairs = {f"generator-0/{perturbed}", f"{perturbed}/generator-0"}
    divergences = [kl for pair in pairs for kl in lab.metrics(runs[1], f"audit/workers/{pair}").values()]
    assert min(divergences) > 0.02
    assert found["leases"][1] >= 3

    line = f"{perturbed} gets no more leases in this run: audits have found it wrong"
    assert err.count(line) == 1, err
    about = json.loads((runs[1] / "about.json").read_text())
    assert about["excluded"].keys() == {perturbed}
    why = about["excluded"][perturbed]
    assert re.search(r"nats per token, 0\.0\d+ are allowed; they are ", why)
    _, logged = lab.mlflow(runs[1])
    assert logged.data.tags[f"rlvf.excluded.{perturbed}"] == why
    assert json.loads((runs[0] / "about.json").read_text())["excluded"] == {}
