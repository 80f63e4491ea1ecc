"""Runs of PPO with a critic: real workers, which have all roles or one each."""

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from flows.config import TrainConfig
from infra.cluster.timeline import read_sessions
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


def test_the_update_of_the_critic_is_work_of_the_machines(lab: Any, undisturbed: tuple[Path, tuple[str, str]]) -> None:
    run, _ = undisturbed
    (spans,) = read_sessions((run / "timeline.jsonl").read_text())
    updates = [span for span in spans if span.call == "train_critic"][1:-1]  # the others begin and keep it
    assert len(updates) == STEPS
    names = ("step_seconds", "rollouts_seconds", "trainer_busy", "overhead_fraction")
    seconds, rollouts, busy, overhead = (lab.metrics(run, f"perf/{name}") for name in names)
    for step, critic in enumerate(updates, 1):
        took = critic.end - critic.start - 0.01  # a span is written in milliseconds
        assert critic.worker == "trainer"
        assert busy[step] * seconds[step] > took
        assert overhead[step] * seconds[step] < seconds[step] - rollouts[step] - took


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


@pytest.mark.slow
def test_where_the_critic_runs_changes_no_bit(lab: Any, undisturbed: tuple[Path, tuple[str, str]]) -> None:
    alone = {"cluster__scheduler": None, "cluster__threads": "1", "cluster__device": "cpu", "cluster__critics": "1"}
    result = lab.train(steps=str(STEPS), **PPO, **alone, placement__value="CRITIC", placement__train_critic="CRITIC")
    assert digests(lab, Path(result.run), STEPS) == undisturbed[1]
    rows = [json.loads(line) for line in (Path(result.run) / "timeline.jsonl").read_text().splitlines()]
    places = {(row["call"], row["worker"]) for row in rows if "call" in row}
    assert ("train", "trainer") in places
    assert {worker for call, worker in places if call in ("value", "train_critic")} == {"critic-0"}


def test_an_adapted_penalty_in_the_reward_does_not_go_with_a_critic() -> None:
    kl = {"coefficient": 0.1, "in_reward": True, "target": 0.1}
    with pytest.raises(ValueError, match=r"algorithm\.kl\.target: with in_reward and the critic of ppo"):
        TrainConfig.model_validate({"algorithm": {"name": "ppo", "kl": kl}})
    TrainConfig.model_validate({"algorithm": {"name": "reinforce", "kl": kl}})
