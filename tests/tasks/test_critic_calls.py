"""The critic's calls beside the policy's, and what is left of both where a process is killed between them."""

import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.torch import load_file

from flows.run.models import begin_together
from infra.cluster.resident import drop
from infra.runs.checkpoints import CheckpointConfig
from infra.runs.remains import CheckpointsLostError
from infra.storage import store
from infra.storage.fence import Fence
from infra.storage.lock import acquire
from infra.weights.version import SyncConfig
from rl.config import PolicyConfig, SamplingConfig
from rl.learning.algorithm_config import AlgorithmSpec
from rl.learning.critic import token_values
from rl.learning.critic_config import CriticConfig
from rl.learning.optimizer_config import OptimizerConfig
from rl.learning.packing import pack, rows_of
from rl.records import Batch, Problem, Rollouts
from tasks.calls.critic import Critic, Valuer
from tasks.calls.trained import drop_publisher
from tasks.calls.trainer import Trainer

pytestmark = pytest.mark.slow

CPU = PolicyConfig(device="cpu")
PPO = AlgorithmSpec(name="ppo")
KILLED = """
import os, signal, sys
from pathlib import Path
from tests.tasks.test_critic_calls import both_of, batch_at
from infra.storage.lock import acquire

uri, source, steps, between = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
lock = acquire(uri, print)
trainer, critic = both_of(uri, Path(source), lock.new_fence())
critic.begin()
trainer.begin(0)
for step in range(steps):
    last = step == steps - 1
    if between == "policy" or not last:
        trainer.advance(step, batch_at(step), {})
    if between == "critic" or not last:
        critic.advance(step, batch_at(step))
os.kill(os.getpid(), signal.SIGKILL)
"""


def both_of(uri: str, source: Path, fence: Fence) -> tuple[Trainer, Critic]:
    shared: dict[str, Any] = {
        "run_uri": uri,
        "source": str(source),
        "policy": CPU,
        "optimizer": OptimizerConfig(lr=1e-3),
        "sampling": SamplingConfig(max_tokens=12),
        "checkpoint": CheckpointConfig(keep_last=1),
        "sync": SyncConfig(),
        "window": 1,
        "steps": 20,
        "fence": fence,
        "beside": True,
        "algorithm": PPO,
    }
    return Trainer(**shared), Critic(**shared, critic=CriticConfig())


def batch_at(step: int) -> Batch:
    """A batch of its own for each step, with values."""
    random = np.random.default_rng(step)
    problems = [Problem(f"{p}", "1", "test") for p in range(3)]
    completions = [random.integers(3, 50, random.integers(1, 6)) for _ in range(6)]
    rollouts = Rollouts.padded(problems, [[5, 6, 7 + p] for p in range(3)], completions, version=step)
    rewards = np.float32([[0, 1], [1, 0], [0, 0]])
    values = random.normal(size=rollouts.tokens.shape).astype(np.float32)
    return Batch(rollouts, rewards, (("", ""),) * 3, values=values)


class Here:
    """A dispatch that makes the calls in this process."""

    def run(self, _: str, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)


def lose() -> None:
    for role in ("learner", "critic"):
        drop_publisher(role)
        drop(role)
    drop("values")
    drop("critic's mirror")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return tmp_path / "run"


@pytest.fixture
def both(run: Path, half_right: Path) -> Iterator[tuple[Trainer, Critic]]:
    lock = acquire(str(run), print)
    yield both_of(str(run), half_right, lock.new_fence())
    lose()
    lock.release()


def begin(both: tuple[Trainer, Critic]) -> int:
    lose()
    here: Any = Here()
    return begin_together(here, *both).step


def saved_state(run: Path, step: int, of: Sequence[str] = ("state", "critic/state")) -> dict[str, bytes]:
    """Weights and optimizers of both models, by name; the random state is of the process."""
    files = [
        run / folder / str(step) / name for folder in of for name in ("model.safetensors", "optimizer.safetensors")
    ]
    tensors = {f"{file.relative_to(run)}:{name}": of for file in files for name, of in load_file(file).items()}
    return {name: of.numpy().tobytes() for name, of in tensors.items() if not name.endswith(":rng")}


@pytest.mark.parametrize("between", ["policy", "critic"])
def test_a_process_that_is_killed_between_the_two_updates_leaves_both_or_neither(
    run: Path, tmp_path: Path, half_right: Path, between: str
) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(run), str(half_right), "3", between], check=False)
    assert killed.returncode == -signal.SIGKILL
    saved = store.versions(str(run / "state")), store.versions(str(run / "critic" / "state"))
    assert saved == (([2, 3], [1, 2]) if between == "policy" else ([1, 2], [2, 3]))
    lock = acquire(str(run), print)
    both = both_of(str(run), half_right, lock.new_fence())
    assert begin(both) == 2
    assert 3 not in store.versions(str(run / "state")) + store.versions(str(run / "critic" / "state"))
    both[0].advance(2, batch_at(2), {})
    both[1].advance(2, batch_at(2))
    found = saved_state(run, 3)
    lock.release()
    other = tmp_path / "undisturbed"
    lock = acquire(str(other), print)
    both = both_of(str(other), half_right, lock.new_fence())
    assert begin(both) == 0
    for step in range(3):
        both[0].advance(step, batch_at(step), {})
        both[1].advance(step, batch_at(step))
    assert saved_state(other, 3) == found
    assert store.versions(str(other / "state")) == store.versions(str(other / "critic" / "state")) == [2, 3]
    lose()
    lock.release()


def test_a_run_goes_on_from_the_newest_step_of_which_all_checkpoints_are_whole(
    both: tuple[Trainer, Critic], run: Path
) -> None:
    assert begin(both) == 0
    for step in range(3):
        both[0].advance(step, batch_at(step), {})
        both[1].advance(step, batch_at(step))
    torn = run / "critic" / "state" / "3" / "model.safetensors"
    torn.write_bytes(torn.read_bytes()[:-1])
    assert begin(both) == 2
    assert store.versions(str(run / "state")) == [2]


def test_without_a_common_step_nothing_begins_anew(both: tuple[Trainer, Critic], run: Path) -> None:
    assert begin(both) == 0
    for step in range(3):
        both[0].advance(step, batch_at(step), {})
        both[1].advance(step, batch_at(step))
    for step in (2, 3):
        (run / "state" / str(step) / "model.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointsLostError, match=r"has no checkpoint of version 3 or before"):
        begin(both)
    assert store.versions(str(run / "critic" / "state")) == [2, 3]


def test_without_the_critic_s_checkpoints_nothing_begins_anew(both: tuple[Trainer, Critic], run: Path) -> None:
    assert begin(both) == 0
    shutil.rmtree(run / "critic")
    assert begin(both) == 0  # nothing was made that could be lost
    for step in range(3):
        both[0].advance(step, batch_at(step), {})
        both[1].advance(step, batch_at(step))
    shutil.rmtree(run / "critic")
    lost = (
        rf"^{run} cannot go on: it has been at version 3, and no checkpoint of its critic is whole \(there is none in "
    )
    with pytest.raises(CheckpointsLostError, match=lost):
        begin((replace(both[0], source=""), replace(both[1], source="")))  # as with the tiny policy, already warmed up
    assert store.versions(str(run / "state")) == [2, 3]
    assert not (run / "critic").exists()


def test_nothing_is_removed_while_a_common_step_is_looked_for(both: tuple[Trainer, Critic], run: Path) -> None:
    more = CheckpointConfig(keep_last=3)
    both = replace(both[0], checkpoint=more), replace(both[1], checkpoint=more)
    assert begin(both) == 0
    for step in range(4):
        both[0].advance(step, batch_at(step), {})
        both[1].advance(step, batch_at(step))
    for lost in ("state/3", "critic/state/1", "critic/state/2", "critic/state/4"):
        shutil.rmtree(run / lost)
    with pytest.raises(CheckpointsLostError, match=r"critic cannot go on: it has no checkpoint of version 2 or before"):
        begin(both)
    assert store.versions(str(run / "state")) == [1, 2, 4]
    assert store.versions(str(run / "critic" / "state")) == [3]


def test_an_update_that_was_made_before_is_not_made_again(both: tuple[Trainer, Critic]) -> None:
    begin(both)
    learned = both[1].advance(0, batch_at(0))
    assert set(learned.metrics) == {
        "critic/loss",
        "critic/grad_norm",
        "critic/explained_variance",
        "critic/value_mean",
    }
    lose()
    assert both[1].advance(0, batch_at(5)) == learned


def test_values_are_those_of_the_published_version(both: tuple[Trainer, Critic]) -> None:
    begin(both)
    valuer, rollouts = Valuer(CPU), batch_at(7).rollouts
    first = both[1].publish(0).version
    assert not valuer.value(first, rollouts).any()
    for step in range(2):
        both[1].advance(step, batch_at(step))
        version = both[1].publish(step + 1).version
        found = valuer.value(version, rollouts)
        with both[1]._learner(step + 1) as (learner, _):
            packed = pack(rollouts, rows_of(rollouts, range(3)), learner.policy.device)
            expected = np.zeros_like(found)
            expected[packed.group, packed.sample, packed.token_index] = token_values(learner.policy, packed)
        assert np.abs(found - expected).max() < 1e-5
        assert found.any()
    bare = replace(rollouts, problems=(), texts=(), logprobs=rollouts.logprobs[..., :0])
    drop("values")  # as on another worker
    assert valuer.value(version, bare).tobytes() == found.tobytes()


def test_returns_are_less_by_the_coefficient_that_was_adapted(run: Path, tmp_path: Path, half_right: Path) -> None:
    """As of a critic whose coefficient is given as that number."""
    lock = acquire(str(run), print)
    kl = {"coefficient": 0.1, "in_reward": True, "target": 0.01}
    trainer, critic = both_of(str(run), half_right, lock.new_fence())
    adapted = AlgorithmSpec.model_validate({"name": "ppo", "kl": kl})
    both = replace(trainer, algorithm=adapted), replace(critic, algorithm=adapted)
    assert begin(both) == 0
    coefficient: float | None = None
    taken = []
    for step in range(3):
        scored = replace(batch_at(step), reference_logprobs=batch_at(step).rollouts.logprobs - 1.0)
        learned = both[0].advance(step, scored, {})
        both[1].advance(step, scored, coefficient)
        taken.append(learned.metrics["loss/kl_coefficient"])
        assert coefficient in (None, taken[-1])
        coefficient = learned.kl_coefficient
    assert coefficient is not None
    assert taken[0] == 0.1
    assert len({*taken, coefficient}) == 4
    lose()
    assert both[0].begin().learned == learned  # what a resume goes on with
    found = saved_state(run, 3)
    lock.release()
    other = tmp_path / "given"
    lock = acquire(str(other), print)
    _, critic = both_of(str(other), half_right, lock.new_fence())
    lose()
    critic.begin()
    for step, given in enumerate(taken):
        fixed = AlgorithmSpec.model_validate({"name": "ppo", "kl": {"coefficient": given, "in_reward": True}})
        scored = replace(batch_at(step), reference_logprobs=batch_at(step).rollouts.logprobs - 1.0)
        lose()
        replace(critic, algorithm=fixed).advance(step, scored)
    lock.release()
    lose()
    of_critic = {name: of for name, of in found.items() if name.startswith("critic/")}
    assert saved_state(other, 3, ("critic/state",)) == of_critic
