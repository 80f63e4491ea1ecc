"""Runs of PPO with a critic: real workers, which have all roles or one each."""

import threading
from pathlib import Path
from typing import Any

import pytest

from infra.storage import store
from tests.flows.accidents import kill_in_call

PPO = {"algorithm": "ppo", "staleness": "0", "checkpoint__keep_last": "1", "optimizer__lr": "1e-3"}
STEPS = 4
CRITIC = ("critic/loss", "critic/explained_variance", "critic/grad_norm", "critic/value_mean")


def digests(lab: Any, run: Path, step: int) -> tuple[str, str]:
    """Of the weights of policy and critic."""
    return lab.weights_digest(run, step), lab.weights_digest(run / "critic", step)


@pytest.fixture(scope="module")
def undisturbed(lab: Any) -> tuple[Path, tuple[str, str]]:
    run = Path(lab.train(steps=str(STEPS), **PPO).run)
    return run, digests(lab, run, STEPS)


def test_the_critic_is_trained_beside_the_policy_and_saved_with_it(
    lab: Any, undisturbed: tuple[Path, tuple[str, str]]
) -> None:
    run, _ = undisturbed
    steps = list(range(1, STEPS + 1))
    for name in CRITIC:
        assert list(lab.metrics(run, name)) == steps, name
    values = lab.metrics(run, "critic/value_mean")
    assert values[1] == 0
    assert len(set(values.values())) == STEPS
    assert store.versions(str(run / "state"))[-1] == store.versions(str(run / "critic" / "state"))[-1] == STEPS
    assert store.versions(str(run / "critic" / "weights"), prefix="v")[-1] == STEPS


def test_a_run_that_goes_on_ends_with_the_same_weights(lab: Any, undisturbed: tuple[Path, tuple[str, str]]) -> None:
    run = Path(lab.train(steps="2", **PPO).run)
    lab.train(resume=str(run), steps=str(STEPS), **PPO)
    assert digests(lab, run, STEPS) == undisturbed[1]


def test_a_worker_that_is_killed_between_the_two_updates_costs_nothing_but_time(
    lab: Any, undisturbed: tuple[Path, tuple[str, str]]
) -> None:
    name = lab.new_name()
    run = lab.run_folder(name)
    lab.settle()
    killer = threading.Thread(target=kill_in_call, args=(lab, "trainer", "train", run, 1))
    killer.start()
    result = lab.train(run=name, steps=str(STEPS), **PPO)
    killer.join()
    assert result.lost
    assert digests(lab, run, STEPS) == undisturbed[1]
