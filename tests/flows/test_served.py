"""Runs whose completions a server samples."""

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from rl.config import PolicyConfig
from rl.loading.policy import load_policy
from rl.sampling.server import ServerError
from tests.conftest import free_port
from tests.rl.sampling.vllm_like import vllm_like

pytestmark = pytest.mark.slow


def test_a_run_learns_from_what_a_server_samples_and_is_evaluated_without_it(lab: Any) -> None:
    policy = load_policy(str(lab.policy), PolicyConfig(device="cpu"), check=False)
    before = deepcopy(policy.weights())
    with vllm_like(policy) as like:
        run = Path(lab.train(steps="2", staleness="0", optimizer__lr="1e-2", policy__engine=like.address).run)
        for step, kl in lab.metrics(run, "policy/mismatch_kl").items():
            assert abs(kl) < 1e-6, step
        assert like.named.startswith("rlvf ")
        sampled = [body for path, body in like.asked if path == "/v1/completions"]
        assert len({body["seed"] for body in sampled}) > 8
    assert any((before[name] != value).any() for name, value in policy.weights().items())  # it has the last version
    assert lab.evaluate(policy=run.name, problems=str(lab.problems), samples="1", held_out="4").step == 2


def test_a_server_that_does_not_answer_ends_a_run_before_it_begins(lab: Any) -> None:
    name = lab.new_name()
    with pytest.raises(ServerError, match=r"cannot be reached .*start it as docs/models\.md says"):
        lab.train(run=name, policy__engine=f"http://127.0.0.1:{free_port()}")
    assert not lab.run_folder(name).exists()
