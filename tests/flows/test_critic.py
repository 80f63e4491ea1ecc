"""Runs of PPO with a critic: real workers, which have all roles or one each."""

import json
import shutil
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import AutoModel

from flows import train
from flows.run.training import Training
from infra.cluster.timeline import read_sessions
from infra.runs.remains import CheckpointsLostError
from infra.storage import store
from infra.weights.mirror import Mirror
from rl.records import Rollouts
from tests.flows.accidents import kill_in_call

pytestmark = pytest.mark.slow

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
    updates = [span for span in spans if span.call == "train_critic"][2:-1]  # others begin, go back and keep it
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


def test_a_copy_without_the_critic_does_not_go_on_and_keeps_what_it_has(
    lab: Any, undisturbed: tuple[Path, tuple[str, str]]
) -> None:
    whole, _ = undisturbed
    run = lab.run_folder(lab.new_name())
    shutil.copytree(whole, run, ignore=shutil.ignore_patterns("lock"))
    shutil.rmtree(run / "critic" / "state")
    with pytest.raises(CheckpointsLostError, match=r"no checkpoint of its critic is whole .* copy critic/ too"):
        lab.train(resume=str(run), steps=str(STEPS + 1), **PPO)
    shutil.rmtree(run / "critic")
    with pytest.raises(ValueError, match="restore its folder critic"):
        lab.train(resume=str(run), steps=str(STEPS + 1), **PPO)
    assert store.versions(str(run / "state")) == store.versions(str(whole / "state"))


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


def values_of(weights: Mapping[str, torch.Tensor], start: Path, rollouts: Rollouts) -> NDArray[np.float64]:
    """[P, G, T] by a plain forward pass, in float64, of the decoder with these weights and its scalar head."""
    decoder = AutoModel.from_pretrained(start, dtype=torch.float64)
    wide = {name: value.double() for name, value in weights.items()}
    decoder.load_state_dict({name.removeprefix("model."): of for name, of in wide.items() if name.startswith("model.")})
    head, bias = wide["lm_head.weight"], wide["lm_head.bias"]
    found = np.zeros(rollouts.tokens.shape)
    for (p, g), length in np.ndenumerate(rollouts.lengths):
        ids = torch.tensor([[*rollouts.prompts[p].tolist(), *rollouts.tokens[p, g, :length].tolist()]])
        with torch.no_grad():
            hidden = decoder(ids, use_cache=False).last_hidden_state[0, -length - 1 : -1]
        found[p, g, :length] = (hidden @ head.T + bias)[:, 0].numpy()
    return found


def test_ahead_of_training_all_values_of_a_batch_are_of_one_published_version(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    versions: dict[int, int] = {}
    keep = Training.keep

    def keeps(training: Training, step: int, batch: Any) -> None:
        assert training.critic is not None
        version = training.critic.scores._versions[step]
        mirror = Mirror(version.uri.rpartition("/")[0], patience=0.0)
        with mirror.at(version) as weights:
            expected = values_of(weights, lab.policy, batch.everything.rollouts)
        assert np.abs(batch.everything.values - expected).max() < 1e-4
        assert np.any(expected) == (version.step > 0)
        versions[step] = version.step
        keep(training, step, batch)

    monkeypatch.setattr(Training, "keep", keeps)
    ahead = PPO | {"staleness": "2"}
    run = Path(lab.train(steps="4", **ahead).run)
    lab.train(resume=str(run), steps="8", **ahead)
    assert list(versions) == list(range(8))
    assert all(max(0, step - 2) <= version <= step for step, version in versions.items())
    ages = {step + 1: float(step - version) for step, version in versions.items()}
    assert lab.metrics(run, "critic/staleness") == ages
    assert max(ages.values()) > 0
    assert max(lab.metrics(run, "staleness/max").values()) <= 2
    assert store.versions(str(run / "state"))[-1] == store.versions(str(run / "critic" / "state"))[-1] == 8


def test_where_the_critic_runs_changes_no_bit(lab: Any, undisturbed: tuple[Path, tuple[str, str]]) -> None:
    alone = {"cluster__scheduler": None, "cluster__threads": "1", "cluster__device": "cpu", "cluster__critics": "1"}
    result = lab.train(steps=str(STEPS), **PPO, **alone, placement__value="CRITIC", placement__train_critic="CRITIC")
    assert digests(lab, Path(result.run), STEPS) == undisturbed[1]
    rows = [json.loads(line) for line in (Path(result.run) / "timeline.jsonl").read_text().splitlines()]
    places = {(row["call"], row["worker"]) for row in rows if "call" in row}
    assert ("train", "trainer") in places
    assert {worker for call, worker in places if call in ("value", "train_critic")} == {"critic-0"}


def test_an_adapted_penalty_in_the_reward_is_the_same_for_policy_and_critic(
    lab: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coefficient by which the policy learned a step is that of the critic's returns, also after a resume."""
    told: dict[int, float | None] = {}
    submit = train.train_critic.submit

    def tells(dispatch: Any, critic: Any, step: int, batch: Any, kl_coefficient: float | None) -> Any:
        told[step + 1] = kl_coefficient
        return submit(dispatch, critic, step, batch, kl_coefficient)

    monkeypatch.setattr(train.train_critic, "submit", tells)
    kl = {"algorithm__kl": "0.1", "algorithm__kl__in_reward": "true", "algorithm__kl__target": "0.001"}
    whole = Path(lab.train(steps="4", **PPO, **kl).run)
    took = lab.metrics(whole, "loss/kl_coefficient")
    assert took[1] == 0.1
    assert len(set(took.values())) == 4
    assert told == {**took, 1: None}
    told.clear()
    part = Path(lab.train(steps="2", **PPO, **kl).run)
    lab.train(resume=str(part), steps="4", **PPO, **kl)
    assert told == {**took, 1: None}
    assert digests(lab, part, 4) == digests(lab, whole, 4)
